"""LLVM IR of the shortest way into a session on a GPU (`cuda_native.py`): a function of CPython's own calling convention.

It reads a plan of words (`FIELDS`) and tensors as DLPack describes them, and calls nothing but CPython, PyTorch's functions in the plan and
the driver. Results that were made go back where the call is given up.
"""

from __future__ import annotations

MOST_ARRAYS, MOST_NODES = 256, 1024
ERROR_BYTES = 32  # of a kernel's error block
DATA, DEVICE, KIND, SHAPE, STRIDES, OFFSET, DLTENSOR = 0, 8, 16, 24, 32, 40, 48  # bytes of a DLTensor; `KIND` has the rank and the dtype

# The words of a plan, in this order.
POINTERS = (
    "launch", "set_params", "replace", "graph", "look", "stream_of", "tensor", "parameter", "is_neg", "false", "short", "error_blocks",
    "inputs", "outputs", "alloc", "finish", "acquire", "release", "bound", "moving", "mapping", "updates",
    "capturing",
)  # fmt: skip
NUMBERS = ("kind_of_device", "device", "errors", "stream", "ins", "outs", "moves", "maps", "nodes")
FIELDS = (*POINTERS, *NUMBERS)
IMPORTS = (
    "PyTuple_Size", "PyTuple_GetItem", "PyTuple_New", "PyTuple_SetItem", "PyObject_Vectorcall", "PyObject_Call", "Py_DecRef",
    "PyErr_Clear", "PyEval_SaveThread", "PyEval_RestoreThread",
)  # fmt: skip


def _field(name: str, kind: str = "ptr") -> str:
    return f"""  %{name}.at = getelementptr i64, ptr %plan, i64 {FIELDS.index(name)}
  %{name} = load {kind}, ptr %{name}.at, align 8
"""


def _of(value: str, base: str, offset: int, kind: str = "ptr") -> str:
    return f"""  %{value}.at = getelementptr i8, ptr %{base}, i64 {offset}
  %{value} = load {kind}, ptr %{value}.at, align 8
"""


def native_ir(payload: int, type_at: int) -> str:
    """The module. `payload`: where the bytes of a `bytes` object begin; `type_at`: where an object's type is."""
    fields = "".join(_field(f, "ptr" if f in POINTERS else "i64") for f in FIELDS)
    return f"""
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyObject_Call(ptr, ptr, ptr)
declare void @Py_DecRef(ptr)
declare void @PyErr_Clear()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define ptr @tw_gpu_call(ptr %self, ptr %args, i64 %given) {{
entry:
  %seen = alloca [{DLTENSOR} x i8], align 8
  %current = alloca i64, align 8
  %state = alloca i32, align 4
  %one = alloca ptr, align 8
  %addresses = alloca [{MOST_ARRAYS} x i64], align 8
  %made = alloca [{MOST_ARRAYS} x ptr], align 8
  %dirty = alloca [{MOST_NODES} x i8], align 8
{_of("plan", "self", payload)}{fields}\
  %alone = icmp eq i64 %given, 1
  br i1 %alone, label %open, label %miss
open:
  %tuple = load ptr, ptr %args, align 8
  %count = call i64 @PyTuple_Size(ptr %tuple)
  %all = icmp eq i64 %count, %ins
  br i1 %all, label %input, label %miss

input:
  %i = phi i64 [ 0, %open ], [ %i1, %taken ]
  %record = phi ptr [ %inputs, %open ], [ %record1, %taken ]
  %i.more = icmp ult i64 %i, %ins
  br i1 %i.more, label %typed, label %fault
typed:
  %x = call ptr @PyTuple_GetItem(ptr %tuple, i64 %i)
{_of("type", "x", type_at)}\
  %is.tensor = icmp eq ptr %type, %tensor
  %is.parameter = icmp eq ptr %type, %parameter
  %is.ours = or i1 %is.tensor, %is.parameter
  br i1 %is.ours, label %looking, label %miss
looking:
  %look.failed = call i32 %look(ptr %x, ptr %seen)
  %look.fine = icmp eq i32 %look.failed, 0
  br i1 %look.fine, label %kinds, label %clear
kinds:
{_of("x.device", "seen", DEVICE, "i64")}{_of("x.kind", "seen", KIND, "i64")}\
{_of("want.kind", "record", 0, "i64")}{_of("rank", "record", 8, "i64")}\
  %same.device = icmp eq i64 %x.device, %device
  %same.kind = icmp eq i64 %x.kind, %want.kind
  %same = and i1 %same.device, %same.kind
{_of("shape", "seen", SHAPE)}{_of("strides", "seen", STRIDES)}\
  %axes = getelementptr i8, ptr %record, i64 16
  br i1 %same, label %axis, label %miss
axis:
  %a = phi i64 [ 0, %kinds ], [ %a1, %axis.fine ]
  %none = phi i1 [ false, %kinds ], [ %none1, %axis.fine ]
  %a.more = icmp ult i64 %a, %rank
  br i1 %a.more, label %axis.look, label %signs
axis.look:
  %pair = getelementptr [2 x i64], ptr %axes, i64 %a
{_of("want.size", "pair", 0, "i64")}{_of("want.stride", "pair", 8, "i64")}\
  %size.at = getelementptr i64, ptr %shape, i64 %a
  %size = load i64, ptr %size.at, align 8
  %stride.at = getelementptr i64, ptr %strides, i64 %a
  %stride = load i64, ptr %stride.at, align 8
  %any.stride = icmp slt i64 %want.stride, 0
  %same.stride = icmp eq i64 %stride, %want.stride
  %good.stride = or i1 %any.stride, %same.stride
  %same.size = icmp eq i64 %size, %want.size
  %good.axis = and i1 %good.stride, %same.size
  br i1 %good.axis, label %axis.fine, label %miss
axis.fine:
  %a1 = add i64 %a, 1
  %zero = icmp eq i64 %want.size, 0
  %none1 = or i1 %none, %zero
  br label %axis
signs:
  store ptr %x, ptr %one, align 8
  %neg = call ptr @PyObject_Vectorcall(ptr %is_neg, ptr %one, i64 1, ptr null)
  %neg.null = icmp eq ptr %neg, null
  br i1 %neg.null, label %clear, label %signed
signed:
  call void @Py_DecRef(ptr %neg)
  %plain = icmp eq ptr %neg, %false
{_of("x.data", "seen", DATA, "i64")}{_of("x.offset", "seen", OFFSET, "i64")}\
  %x.address = add i64 %x.data, %x.offset
  %low = and i64 %x.address, 15
  %aligned = icmp eq i64 %low, 0
  %somewhere = icmp ne i64 %x.address, 0  ; a tensor of functionalize is nowhere, an empty one may be
  %there = or i1 %somewhere, %none
  %fit = and i1 %aligned, %there
  %good = and i1 %plain, %fit
  br i1 %good, label %taken, label %miss
taken:
  %address.at = getelementptr i64, ptr %addresses, i64 %i
  store i64 %x.address, ptr %address.at, align 8
  %rank2 = shl i64 %rank, 4
  %record1 = getelementptr i8, ptr %axes, i64 %rank2
  %i1 = add i64 %i, 1
  br label %input

fault:
  %e = phi i64 [ 0, %input ], [ %e1, %fault.look ]
  %e.more = icmp ult i64 %e, %errors
  br i1 %e.more, label %fault.look, label %streams
fault.look:
  %e.off = mul i64 %e, {ERROR_BYTES}
  %e.at = getelementptr i8, ptr %error_blocks, i64 %e.off
  %code = load volatile i64, ptr %e.at, align 8
  %e1 = add i64 %e, 1
  %e.bad = icmp ne i64 %code, 0
  br i1 %e.bad, label %miss, label %fault
streams:
  %device.kind = trunc i64 %kind_of_device to i32
  %stream.failed = call i32 %stream_of(i32 %device.kind, i32 0, ptr %current)
  %stream.fine = icmp eq i32 %stream.failed, 0
  br i1 %stream.fine, label %stream.same, label %clear
stream.same:
  %now = load i64, ptr %current, align 8
  %same.stream = icmp eq i64 %now, %stream
  br i1 %same.stream, label %uncaptured, label %miss
uncaptured:
  %default = icmp eq i64 %now, 0
  br i1 %default, label %output, label %capture
capture:
  %now.at = inttoptr i64 %now to ptr
  store i32 0, ptr %state, align 4
  %capture.failed = call i32 %capturing(ptr %now.at, ptr %state)
  %captured = load i32, ptr %state, align 4
  %capture.any = or i32 %capture.failed, %captured
  %capture.none = icmp eq i32 %capture.any, 0
  br i1 %capture.none, label %output, label %miss

output:
  %k = phi i64 [ 0, %uncaptured ], [ 0, %capture ], [ %k1, %output.kept ]
  %k.more = icmp ult i64 %k, %outs
  br i1 %k.more, label %make, label %ready
make:
  %how.at = getelementptr ptr, ptr %outputs, i64 %k
  %like = load ptr, ptr %how.at, align 8
  %y = call ptr @PyObject_Call(ptr %alloc, ptr %like, ptr null)
  %y.null = icmp eq ptr %y, null
  br i1 %y.null, label %failed, label %output.look
output.look:
  %made.at = getelementptr ptr, ptr %made, i64 %k
  store ptr %y, ptr %made.at, align 8
  %k1 = add i64 %k, 1
  %y.failed = call i32 %look(ptr %y, ptr %seen)
{_of("y.device", "seen", DEVICE, "i64")}\
  %y.looked = icmp eq i32 %y.failed, 0
  %y.here = icmp eq i64 %y.device, %device
  %y.fine = and i1 %y.looked, %y.here
  br i1 %y.fine, label %output.kept, label %undo
output.kept:
{_of("y.data", "seen", DATA, "i64")}{_of("y.offset", "seen", OFFSET, "i64")}\
  %y.address = add i64 %y.data, %y.offset
  %y.slot = add i64 %ins, %k
  %y.at = getelementptr i64, ptr %addresses, i64 %y.slot
  store i64 %y.address, ptr %y.at, align 8
  br label %output

ready:
  store ptr %false, ptr %one, align 8
  %got = call ptr @PyObject_Vectorcall(ptr %acquire, ptr %one, i64 1, ptr null)
  %got.null = icmp eq ptr %got, null
  br i1 %got.null, label %undo, label %waited
waited:
  call void @Py_DecRef(ptr %got)
  %taken.already = icmp eq ptr %got, %false
  br i1 %taken.already, label %undo, label %held
held:
  %last = load i64, ptr %stream.at, align 8
  %still = icmp eq i64 %now, %last
  %arrays = add i64 %ins, %outs
  br i1 %still, label %compare, label %unlock
compare:
  %r = phi i64 [ 0, %held ], [ %r1, %comparing ]
  %r.more = icmp ult i64 %r, %arrays
  br i1 %r.more, label %comparing, label %go
comparing:
  %r.at = getelementptr i64, ptr %bound, i64 %r
  %r.was = load i64, ptr %r.at, align 8
  %r.from = getelementptr i64, ptr %addresses, i64 %r
  %r.is = load i64, ptr %r.from, align 8
  %r1 = add i64 %r, 1
  %r.same = icmp eq i64 %r.was, %r.is
  br i1 %r.same, label %compare, label %bind

bind:
  %nbytes = shl i64 %arrays, 3
  %first = load i64, ptr %bound, align 8
  %lost = icmp eq i64 %first, -1
  %all.dirty = zext i1 %lost to i8
  call void @llvm.memset.p0.i64(ptr %dirty, i8 %all.dirty, i64 %nodes, i1 false)
  call void @llvm.memset.p0.i64(ptr align 8 %bound, i8 255, i64 %nbytes, i1 false)
  br label %move
move:
  %m = phi i64 [ 0, %bind ], [ %m1, %moved ], [ %m1, %changed ]
  %m.more = icmp ult i64 %m, %moves
  br i1 %m.more, label %moved, label %map
moved:
  %m.at = getelementptr [4 x i64], ptr %moving, i64 %m
{_of("m.word", "m.at", 0)}{_of("m.slot", "m.at", 8, "i64")}{_of("m.offset", "m.at", 16, "i64")}{_of("m.node", "m.at", 24, "i64")}\
  %m.from = getelementptr i64, ptr %addresses, i64 %m.slot
  %m.base = load i64, ptr %m.from, align 8
  %m.value = add i64 %m.base, %m.offset
  %m.was = load i64, ptr %m.word, align 8
  %m1 = add i64 %m, 1
  %m.same = icmp eq i64 %m.was, %m.value
  br i1 %m.same, label %move, label %changed
changed:
  store i64 %m.value, ptr %m.word, align 8
  %m.mark = getelementptr i8, ptr %dirty, i64 %m.node
  store i8 1, ptr %m.mark, align 1
  br label %move
map:
  %t = phi i64 [ 0, %move ], [ %t1, %mapped ], [ %t1, %drawn ]
  %t.more = icmp ult i64 %t, %maps
  br i1 %t.more, label %mapped, label %node
mapped:
  %t.at = getelementptr [3 x i64], ptr %mapping, i64 %t
{_of("t.map", "t.at", 0)}{_of("t.word", "t.at", 8)}{_of("t.node", "t.at", 16, "i64")}\
  %t.mark = getelementptr i8, ptr %dirty, i64 %t.node
  %t.dirty = load i8, ptr %t.mark, align 1
  %t1 = add i64 %t, 1
  %t.still = icmp eq i8 %t.dirty, 0
  br i1 %t.still, label %map, label %drawn
drawn:
  %t.address = load ptr, ptr %t.word, align 8
  %t.status = call i32 %replace(ptr %t.map, ptr %t.address)
  %t.fine = icmp eq i32 %t.status, 0
  br i1 %t.fine, label %map, label %unlock
node:
  %n = phi i64 [ 0, %map ], [ %n1, %noded ], [ %n1, %updated ]
  %n.more = icmp ult i64 %n, %nodes
  br i1 %n.more, label %noded, label %settled
noded:
  %n.mark = getelementptr i8, ptr %dirty, i64 %n
  %n.dirty = load i8, ptr %n.mark, align 1
  %n.at = getelementptr [2 x i64], ptr %updates, i64 %n
  %n1 = add i64 %n, 1
  %n.still = icmp eq i8 %n.dirty, 0
  br i1 %n.still, label %node, label %updated
updated:
{_of("n.node", "n.at", 0)}{_of("n.params", "n.at", 8)}\
  %n.status = call i32 %set_params(ptr %graph, ptr %n.node, ptr %n.params)
  %n.fine = icmp eq i32 %n.status, 0
  br i1 %n.fine, label %node, label %unlock
settled:
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %bound, ptr align 8 %addresses, i64 %nbytes, i1 false)
  br label %go

go:
  %target = inttoptr i64 %now to ptr
  %thread = call ptr @PyEval_SaveThread()
  %status = call i32 %launch(ptr %graph, ptr %target)
  call void @PyEval_RestoreThread(ptr %thread)
  %started = icmp eq i32 %status, 0
  br label %unlock
unlock:
  %done = phi i1 [ false, %held ], [ false, %drawn ], [ false, %updated ], [ %started, %go ]
  %released = call ptr @PyObject_Vectorcall(ptr %release, ptr null, i64 0, ptr null)
  call void @Py_DecRef(ptr %released)
  br i1 %done, label %give, label %undo

give:
  %single = icmp eq ptr %finish, null
  br i1 %single, label %give.one, label %give.all
give.one:
  %only = load ptr, ptr %made, align 8
  ret ptr %only
give.all:
  %results = call ptr @PyTuple_New(i64 %outs)
  %results.null = icmp eq ptr %results, null
  br i1 %results.null, label %failed, label %collect
collect:
  %c = phi i64 [ 0, %give.all ], [ %c1, %collected ]
  %c.more = icmp ult i64 %c, %outs
  br i1 %c.more, label %collected, label %finishing
collected:
  %c.at = getelementptr ptr, ptr %made, i64 %c
  %c.y = load ptr, ptr %c.at, align 8
  %c.ignored = call i32 @PyTuple_SetItem(ptr %results, i64 %c, ptr %c.y)
  %c1 = add i64 %c, 1
  br label %collect
finishing:
  store ptr %results, ptr %one, align 8
  %finished = call ptr @PyObject_Vectorcall(ptr %finish, ptr %one, i64 1, ptr null)
  call void @Py_DecRef(ptr %results)
  ret ptr %finished

undo:
  %undone = phi i64 [ %k1, %output.look ], [ %outs, %ready ], [ %outs, %waited ], [ %outs, %unlock ]
  call void @drop(ptr %made, i64 %undone)
  br label %clear
failed:
  %dropped = phi i64 [ %k, %make ], [ %outs, %give.all ]
  call void @drop(ptr %made, i64 %dropped)
  ret ptr null
clear:
  call void @PyErr_Clear()
  br label %miss
miss:
  %long = call ptr @PyObject_Vectorcall(ptr %short, ptr %args, i64 %given, ptr null)
  ret ptr %long
}}

define internal void @drop(ptr %made, i64 %count) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %body ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %out
body:
  %at = getelementptr ptr, ptr %made, i64 %i
  %y = load ptr, ptr %at, align 8
  call void @Py_DecRef(ptr %y)
  %i1 = add i64 %i, 1
  br label %loop
out:
  ret void
}}
"""
