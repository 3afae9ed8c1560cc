"""Choosing a token, written as PTX: penalty and largest logit, then, where the temperature is not 0, top-k, top-p, min-p and one draw.

Probabilities (of which the largest is 1) lie in memory; their bits order like integers and have 30 digits. A filter finds its threshold
in three rounds of ten: the counters of a round say in which of 1,024 ranges it is. What is left after the first round of a filter goes
on as a list in no order, if it is short. The draw counts masses by ranges of ids, then inside one range: ids are in order there.
"""

from __future__ import annotations

from collections.abc import Callable

from ....core.target_spec import TargetSpec
from ....kernels.sort.cuda.sampling import LISTED, THREADS, SampleKernel
from ....kernels.sort.sampling import BAD_LOGITS
from ....ops.random.philox import MULTIPLIERS, ROUNDS, WEYL
from ....tile.ir import Var
from ..arithmetic import math
from ..ptx.text import KernelText, literal, module_text
from ..threads.access import Address
from ..threads.emit import Emitter
from ..threads.layout import Group

# What the kernel that chooses a token is made of: sweeps over a row, values over a block, and 1,024 counters of 64 bits with their running
# sums. Everything that the block decides by is read from one place in shared memory, so that all threads go the same way.
UNROLL = 12  # most elements that a thread asks for at a time: 48 KB of the block are in flight
UNIT = 2.0**40  # the unit of masses
ADD = "atom.relaxed.cta.shared.add.u32"


DIGITS = 10  # digits of a round: 1,024 counters
NEVER = "0fFF800000"
ZERO, ONE = "0f00000000", "0f3F800000"


def emit_sample(kernel: SampleKernel, target: TargetSpec) -> str:
    return SampleEmitter(kernel).module(target)


class SampleEmitter:
    def module(self, target: TargetSpec) -> str:
        k, v, kernel = self.k, self.v, self.kernel
        self.temperature, self.top_p, self.min_p, penalty = (
            v("float", f"ld.global.f32 {{}}, [{self.pointer(kernel.settings)}+{4 * i}];") for i in range(4)
        )
        numbers = self.pointer(kernel.numbers)
        self.top_k, self.seed, self.counter = (v("i64", f"ld.global.b64 {{}}, [{numbers}+{8 * i}];") for i in range(3))
        self.kept = self.pointer(kernel.kept)
        hot = v("i1", f"setp.gt.f32 {{}}, {self.temperature}, {ZERO};")
        top, where = self._largest(penalty, hot)
        size = v("float", f"abs.f32 {{}}, {top};")
        good = v("i1", f"setp.lt.f32 {{}}, {size}, 0f7F800000;")
        self._complain(good)
        out = self.pointer(kernel.out)
        k.emit(f"@{self.first} st.global.b64 [{out}], {v('i64', f'cvt.u64.u32 {{}}, {where};')};")
        end = k.label("done")
        self.go(end, v("i1", f"not.pred {{}}, {self.both(hot, good)};"))
        self._probabilities(top)
        # where the tokens are that are still in question: the whole row, or a list of some
        self.source, self.left = v("i64", f"mov.u64 {{}}, {self.kept};"), v("i32", f"mov.u32 {{}}, {kernel.size};")
        self.short = v("i32", "mov.u32 {}, 0;")  # 1: a list
        k_wanted = self.both(v("i1", f"setp.gt.s64 {{}}, {self.top_k}, 0;"), v("i1", f"setp.lt.s64 {{}}, {self.top_k}, {kernel.size};"))
        least = self._select(v("i32", "mov.u32 {}, 0;"), k_wanted, by_mass=False)
        least = self._select(least, v("i1", f"setp.lt.f32 {{}}, {self.top_p}, {ONE};"), by_mass=True)
        floor = v("float", f"max.f32 {{}}, {v('float', f'min.f32 {{}}, {self.min_p}, {ONE};')}, {ZERO};")
        least = v("i32", f"max.u32 {{}}, {least}, {v('i32', f'mov.b32 {{}}, {floor};')};")
        token = self._draw(least)
        k.emit(f"@{self.first} st.global.b64 [{out}], {v('i64', f'cvt.u64.u32 {{}}, {token};')};")
        k.place(end)
        return module_text(target.cpu, k.text([f".maxntid {THREADS}, 1, 1"], target.cpu))

    # --- the largest logit --------------------------------------------------------------------------------------------
    def _largest(self, penalty: str, hot: str) -> tuple[str, str]:
        """The largest logit after the penalty and its first place; all of them into `kept` where there will be a draw."""
        k, v, size = self.k, self.v, str(self.kernel.size)
        positive = v("i1", f"setp.gt.f32 {{}}, {penalty}, {ZERO};")
        penalty = v("float", f"selp.f32 {{}}, {penalty}, {ONE}, {positive};")
        penal = v("i1", f"setp.neu.f32 {{}}, {penalty}, {ONE};")
        seen_at = self.pointer(self.kernel.seen)
        best, place = v("float", f"mov.f32 {{}}, {NEVER};"), v("i32", "mov.u32 {}, 0;")

        def one(x: str, i: str, inside: str) -> None:
            over = k.label("unseen")
            seen = v("i32", "mov.u32 {}, 0;")
            k.emit(f"@{self.both(inside, penal)} ld.global.u8 {seen}, [{self.at(seen_at, i, 1)}];")
            self.go(over, v("i1", f"setp.eq.u32 {{}}, {seen}, 0;"))
            divided, times = v("float", f"div.rn.f32 {{}}, {x}, {penalty};"), v("float", f"mul.rn.f32 {{}}, {x}, {penalty};")
            k.emit(f"selp.f32 {x}, {divided}, {times}, {v('i1', f'setp.gt.f32 {{}}, {x}, {ZERO};')};")
            k.place(over)
            k.emit(f"@{self.both(inside, hot)} st.global.f32 [{self.at(self.kept, i, 4)}], {x};")
            k.emit(f"@{v('i1', f'setp.gt.f32 {{}}, {x}, {best};')} mov.u32 {place}, {i};")
            k.emit(f"max.NaN.f32 {best}, {best}, {x};")

        self.sweep(self.pointer(self.kernel.logits), size, one, NEVER)
        top = self.over_block("max.NaN.f32", "float", best)
        mine = v("i1", f"setp.eq.f32 {{}}, {best}, {top};")
        return top, self.over_block("min.u32", "i32", v("i32", f"selp.u32 {{}}, {place}, {int(size) - 1}, {mine};"))

    def _complain(self, good: str) -> None:
        """A largest logit that is no number ends the call with an error."""
        error, bad = self.pointer(self.kernel.error), self.v("i1", f"not.pred {{}}, {good};")
        says = self.both(self.first, bad)
        row = self.v("i64", f"cvt.u64.u32 {{}}, {self.v('i32', 'mov.u32 {}, %ctaid.x;')};")
        for place, value in ((24, -1), (16, row), (8, 0), (0, BAD_LOGITS)):
            word = self.v("i64", f"mov.b64 {{}}, {value};")
            self.k.emit(f"@{says} st.global.b64 [{error}+{place}], {word};")

    def _probabilities(self, top: str) -> None:
        v = self.v

        def one(x: str, i: str, inside: str) -> None:
            below = v("float", f"sub.rn.f32 {{}}, {x}, {top};")
            p = math.exp(self.e.f, v("float", f"div.rn.f32 {{}}, {below}, {self.temperature};"))
            self.k.emit(f"@{inside} st.global.f32 [{self.at(self.kept, i, 4)}], {p};")

        self.sweep(self.kept, str(self.kernel.size), one, NEVER)
        self.barrier()

    # --- the filters --------------------------------------------------------------------------------------------------
    def _select(self, low: str, wanted: str, *, by_mass: bool) -> str:
        """The largest bits from `low` on such that the tokens from them on are k at least, or have top_p of the mass; else `low`."""
        k, v = self.k, self.v
        result, done, again = v("i32", f"mov.u32 {{}}, {low};"), k.label("chosen"), k.label("round")
        self.go(done, v("i1", f"not.pred {{}}, {wanted};"))
        found, shift, goal = v("i32", "mov.u32 {}, 0;"), v("i32", f"mov.u32 {{}}, {2 * DIGITS};"), v("i64", f"mov.u64 {{}}, {self.top_k};")
        k.place(again)
        self.clear()
        above = v("i32", f"add.u32 {{}}, {shift}, {DIGITS};")

        def one(p: str, i: str, inside: str) -> None:
            over = k.label("apart")
            bits = v("i32", f"mov.b32 {{}}, {p};")
            high = v("i32", f"shr.u32 {{}}, {bits}, {above};")
            tests = [f"setp.ge.u32 {{}}, {bits}, {low};", f"setp.ne.u32 {{}}, {bits}, 0;", f"setp.eq.u32 {{}}, {high}, {found};"]
            counts = self.both(inside, *(v("i1", t) for t in tests))
            self.go(over, v("i1", f"not.pred {{}}, {counts};"))
            digit = v("i32", f"and.b32 {{}}, {v('i32', f'shr.u32 {{}}, {bits}, {shift};')}, {THREADS - 1};")
            self.count(v("i32", f"sub.u32 {{}}, {THREADS - 1}, {digit};"), self.mass(p) if by_mass else None)
            k.place(over)

        self.sweep(self.source, self.left, one)
        total = self.scan()
        if by_mass:
            first = v("i1", f"setp.eq.u32 {{}}, {shift}, {2 * DIGITS};")
            k.emit(f"@{first} mov.u64 {goal}, {self._share(total)};")
        self.go(done, v("i1", f"setp.lt.u64 {{}}, {total}, {goal};"))  # fewer than k tokens are possible at all
        place, before, upto = self.locate(goal)
        digit = v("i32", f"sub.u32 {{}}, {THREADS - 1}, {place};")
        k.emit(f"mad.lo.u32 {found}, {found}, {THREADS}, {digit};")
        k.emit(f"sub.u64 {goal}, {goal}, {before};")
        self._shorten(low, found, shift, upto, by_mass)
        k.emit(f"sub.u32 {shift}, {shift}, {DIGITS};")
        self.go(again, v("i1", f"setp.ge.s32 {{}}, {shift}, 0;"))
        k.emit(f"mov.u32 {result}, {found};")
        k.place(done)
        return result

    def _share(self, total: str) -> str:
        """top_p of a mass, rounded up, 1 at least."""
        v = self.v
        part = v("float", f"max.f32 {{}}, {self.top_p}, {literal('float', 1e-30)};")
        wide = v("double", f"cvt.f64.f32 {{}}, {part};")
        exact = v("double", f"mul.rn.f64 {{}}, {v('double', f'cvt.rn.f64.u64 {{}}, {total};')}, {wide};")
        goal = v("i64", f"cvt.rpi.u64.f64 {{}}, {exact};")
        return v("i64", f"min.u64 {{}}, {v('i64', f'max.u64 {{}}, {goal}, 1;')}, {total};")

    def _shorten(self, low: str, found: str, shift: str, upto: str, by_mass: bool) -> None:
        """After the first round: tokens from the range on, and from `low` on (only those were counted), go on as a list, where it is known
        to hold them."""
        k, v = self.k, self.v
        over = k.label("whole")
        least = v("i32", f"max.u32 {{}}, {v('i32', f'shl.b32 {{}}, {found}, {2 * DIGITS};')}, {low};")
        unit = self.mass(v("float", f"mov.b32 {{}}, {least};")) if by_mass else "1"
        most = v("i64", f"mul.lo.u64 {{}}, {LISTED}, {unit};")
        fits = self.both(
            v("i1", f"setp.eq.u32 {{}}, {shift}, {2 * DIGITS};"),
            v("i1", f"setp.eq.u32 {{}}, {self.short}, 0;"),
            v("i1", f"setp.le.u64 {{}}, {upto}, {most};"),
        )
        self.go(over, v("i1", f"not.pred {{}}, {fits};"))
        k.emit(f"@{self.first} st.shared.u32 [{self.appended}], 0;")
        self.barrier()
        listed, ids = self.pointer(self.kernel.listed), self.pointer(self.kernel.ids)

        def one(p: str, i: str, inside: str) -> None:
            skip = k.label("gone")
            bits = v("i32", f"mov.b32 {{}}, {p};")
            tests = [f"setp.ge.u32 {{}}, {bits}, {least};", f"setp.ne.u32 {{}}, {bits}, 0;"]
            stays = self.both(inside, *(v("i1", t) for t in tests))
            self.go(skip, v("i1", f"not.pred {{}}, {stays};"))
            place = v("i32", f"{ADD} {{}}, [{self.appended}], 1;")
            k.emit(f"st.global.f32 [{self.at(listed, place, 4)}], {p};")
            k.emit(f"st.global.u32 [{self.at(ids, place, 4)}], {i};")
            k.place(skip)

        self.sweep(self.kept, str(self.kernel.size), one)
        self.barrier()
        k.emit(f"ld.shared.u32 {self.left}, [{self.appended}];")
        k.emit(f"mov.u64 {self.source}, {listed};")
        k.emit(f"mov.u32 {self.short}, 1;")
        k.place(over)

    # --- the draw -----------------------------------------------------------------------------------------------------
    def _draw(self, least: str) -> str:
        """The first token at which the running mass of the kept ones exceeds u times their sum."""
        k, v, size = self.k, self.v, self.kernel.size
        digits = max(5, (-(-size // THREADS) - 1).bit_length())  # digits of an id inside a range
        is_list = v("i1", f"setp.eq.u32 {{}}, {self.short}, 1;")
        ids = self.pointer(self.kernel.ids)

        def kept(p: str, inside: str) -> str:
            """The mass of a token, 0 where it is not kept."""
            bits = v("i32", f"mov.b32 {{}}, {p};")
            stays = self.both(inside, v("i1", f"setp.ge.u32 {{}}, {bits}, {least};"))
            return v("i64", f"selp.b64 {{}}, {self.mass(p)}, 0, {stays};")

        def listed(range_: str | None) -> None:
            """Count the list's masses by range, or by place inside one range."""

            def one(p: str, i: str, inside: str) -> None:
                over = k.label("other")
                mass, id_ = kept(p, inside), v("i32", "mov.u32 {}, 0;")
                k.emit(f"@{inside} ld.global.u32 {id_}, [{self.at(ids, i, 4)}];")
                own = v("i32", f"shr.u32 {{}}, {id_}, {digits};")
                counts = v("i1", f"setp.ne.u64 {{}}, {mass}, 0;")
                if range_ is not None:
                    counts = self.both(counts, v("i1", f"setp.eq.u32 {{}}, {own}, {range_};"))
                    own = v("i32", f"and.b32 {{}}, {id_}, {(1 << digits) - 1};")
                self.go(over, v("i1", f"not.pred {{}}, {counts};"))
                self.count(own, mass)
                k.place(over)

            self.sweep(self.source, self.left, one)

        def either(range_: str | None, whole: Callable[[], None]) -> str:
            other, done = k.label("row"), k.label("counted")
            self.clear()
            self.go(other, v("i1", f"not.pred {{}}, {is_list};"))
            listed(range_)
            self.go(done)
            k.place(other)
            whole()
            k.place(done)
            return self.scan()

        total = either(None, lambda: self._ranges(digits, kept))
        goal = v("i64", f"add.u64 {{}}, {self._times(total, self._random())}, 1;")
        range_, before, _ = self.locate(goal)

        def inside_range() -> None:
            i = v("i32", f"mad.lo.u32 {{}}, {range_}, {1 << digits}, {self.tid};")
            inside = self.both(v("i1", f"setp.lt.u32 {{}}, {i}, {size};"), v("i1", f"setp.lt.u32 {{}}, {self.tid}, {1 << digits};"))
            p = v("float", f"mov.f32 {{}}, {ZERO};")
            k.emit(f"@{inside} ld.global.f32 {p}, [{self.at(self.kept, i, 4)}];")
            self.put(self.tid, kept(p, inside), inside)

        either(range_, inside_range)
        place, _, _ = self.locate(v("i64", f"sub.u64 {{}}, {goal}, {before};"))
        return v("i32", f"mad.lo.u32 {{}}, {range_}, {1 << digits}, {place};")

    def _ranges(self, digits: int, kept: Callable[[str, str], str]) -> None:
        """The masses of all ranges of the row, a warp for each."""
        k, v, size = self.k, self.v, self.kernel.size
        number = v("i32", f"mov.u32 {{}}, {self.warp};")
        top, end = k.label("range"), k.label("ranged")
        k.place(top)
        self.go(end, v("i1", f"setp.ge.u32 {{}}, {number}, {-(-size >> digits)};"))
        first = v("i32", f"mad.lo.u32 {{}}, {number}, {1 << digits}, {self.lane};")
        at, values = self.at(self.kept, first, 4), []
        for j in range(0, 1 << digits, 32):
            inside = v("i1", f"setp.lt.u32 {{}}, {v('i32', f'add.u32 {{}}, {first}, {j};')}, {size};")
            p = v("float", f"mov.f32 {{}}, {ZERO};")
            k.emit(f"@{inside} ld.global.f32 {p}, [{at}+{4 * j}];")
            values.append((p, inside))
        mass = v("i64", "mov.u64 {}, 0;")
        for p, inside in values:
            mass = v("i64", f"add.u64 {{}}, {mass}, {kept(p, inside)};")
        for step in (16, 8, 4, 2, 1):
            low, high = (self.swap(x, step) for x in self.halves(mass))
            mass = v("i64", f"add.u64 {{}}, {mass}, {v('i64', f'mov.b64 {{}}, {{{low}, {high}}};')};")
        self.put(number, mass, v("i1", f"setp.eq.u32 {{}}, {self.lane}, 0;"))
        k.emit(f"add.u32 {number}, {number}, 32;")
        self.go(top)
        k.place(end)

    def _times(self, total: str, u: str) -> str:
        """total · u / 2^24, rounded down."""
        v = self.v
        high, low = v("i64", f"shr.u64 {{}}, {total}, 24;"), v("i64", f"and.b64 {{}}, {total}, 16777215;")
        rest = v("i64", f"shr.u64 {{}}, {v('i64', f'mul.lo.u64 {{}}, {low}, {u};')}, 24;")
        return v("i64", f"mad.lo.u64 {{}}, {high}, {u}, {rest};")

    def _random(self) -> str:
        """24 random bits, as i64: Philox 4x32-10."""
        v = self.v
        key, c = list(self.halves(self.seed)), [*self.halves(self.counter), "0", "0"]
        c[2:] = [v("i32", "mov.u32 {}, 0;") for _ in range(2)]
        for _ in range(ROUNDS):
            x, y = (self.halves(v("i64", f"mul.wide.u32 {{}}, {c[2 * i]}, {m};")) for i, m in enumerate(MULTIPLIERS))
            mixed = [v("i32", f"xor.b32 {{}}, {high}, {own};") for high, own in ((y[1], c[1]), (x[1], c[3]))]
            one, two = (v("i32", f"xor.b32 {{}}, {a}, {b};") for a, b in zip(mixed, key, strict=True))
            c = [one, y[0], two, x[0]]
            key = [v("i32", f"add.u32 {{}}, {a}, {w};") for a, w in zip(key, WEYL, strict=True)]
        return v("i64", f"cvt.u64.u32 {{}}, {v('i32', f'shr.u32 {{}}, {c[0]}, 8;')};")

    def __init__(self, kernel: SampleKernel) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [])
        self.e = Emitter(kernel, Group(THREADS, 1), self.k)
        self.v = self.k.value
        self.e.parameters()
        self.tid = self.v("i32", "mov.u32 {}, %tid.x;")
        self.lane, self.warp = self.v("i32", f"and.b32 {{}}, {self.tid}, 31;"), self.v("i32", f"shr.u32 {{}}, {self.tid}, 5;")
        self.first = self.v("i1", f"setp.eq.u32 {{}}, {self.tid}, 0;")
        scratch = self.v("i32", "mov.u32 {}, scratch;")

        def room(nbytes: int) -> str:
            return self.v("i32", f"add.u32 {{}}, {scratch}, {self.k.alloc_shared(nbytes)};")

        self.counters = room(8 * THREADS)  # the low words, then the high ones
        self.sums = room(8 * THREADS), room(8 * THREADS)
        self.partial, self.slots = room(4 * 32), room(256)
        self._slots = 0
        self.unroll = min(UNROLL, -(-kernel.size // THREADS))
        self.place, self.before, self.upto, self.appended = (self.slot() for _ in range(4))

    # --- pieces -------------------------------------------------------------------------------------------------------
    def pointer(self, view: Var | None) -> str:
        """The address of the part of a view that belongs to the block's row."""
        found = self.e.env[view]  # type: ignore[index]
        assert isinstance(found, Address)
        kernel = self.kernel
        counts = {kernel.logits: kernel.size, kernel.seen: kernel.size, kernel.kept: kernel.size, kernel.settings: 4, kernel.numbers: 3,
                  kernel.out: 1, kernel.listed: LISTED, kernel.ids: LISTED}
        if view not in counts:
            return found.pointer
        row = self.v("i32", "mov.u32 {}, %ctaid.x;")
        offset = self.v("i64", f"mul.wide.u32 {{}}, {row}, {counts[view] * found.dtype.itemsize};")
        return self.v("i64", f"add.u64 {{}}, {found.pointer}, {offset};")

    def slot(self) -> str:
        """Eight bytes in shared memory through which one thread tells the others."""
        self._slots += 1
        assert self._slots <= 32
        return f"{self.slots}+{8 * (self._slots - 1)}"

    def barrier(self) -> None:
        self.k.emit("bar.sync 0;")

    def go(self, label: str, predicate: str = "") -> None:
        self.k.emit(f"{'@' + predicate + ' ' if predicate else ''}bra {label};")

    def at(self, base: str, index: str, size: int) -> str:
        return self.v("i64", f"mad.wide.u32 {{}}, {index}, {size}, {base};")

    def both(self, *predicates: str) -> str:
        out = predicates[0]
        for p in predicates[1:]:
            out = self.v("i1", f"and.pred {{}}, {out}, {p};")
        return out

    def mass(self, p: str) -> str:
        """A probability (at most 1) as an integer."""
        scaled = self.v("float", f"mul.rn.f32 {{}}, {p}, {literal('float', UNIT)};")
        return self.v("i64", f"cvt.rzi.u64.f32 {{}}, {scaled};")

    def halves(self, x: str) -> tuple[str, str]:
        low, high = self.k.reg("i32"), self.k.reg("i32")
        self.k.emit(f"mov.b64 {{{low}, {high}}}, {x};")
        return low, high

    def swap(self, x: str, step: int) -> str:
        """The value of the lane `step` away."""
        return self.v("i32", f"shfl.sync.bfly.b32 {{}}, {x}, {step}, 31, -1;")

    def over_block(self, fn: str, ty: str, x: str) -> str:
        """`fn` over a value of every thread."""
        k, v = self.k, self.v
        kind = "f32" if ty == "float" else "u32"

        def over_warp(x: str) -> str:
            for step in (16, 8, 4, 2, 1):
                bits = v("i32", f"mov.b32 {{}}, {x};")
                other = v(ty, f"mov.b32 {{}}, {self.swap(bits, step)};")
                x = v(ty, f"{fn} {{}}, {x}, {other};")
            return x

        slot = self.slot()
        x = over_warp(x)
        own = v("i32", f"mad.lo.u32 {{}}, {self.warp}, 4, {self.partial};")
        leads = v("i1", f"setp.eq.u32 {{}}, {self.lane}, 0;")
        k.emit(f"@{leads} st.shared.{kind} [{own}], {x};")
        self.barrier()
        x = over_warp(v(ty, f"ld.shared.{kind} {{}}, [{v('i32', f'mad.lo.u32 {{}}, {self.lane}, 4, {self.partial};')}];"))
        k.emit(f"@{self.first} st.shared.{kind} [{slot}], {x};")
        self.barrier()
        return v(ty, f"ld.shared.{kind} {{}}, [{slot}];")

    def sweep(self, source: str, count: str, body: Callable[[str, str, str], None], fill: str = "0f00000000") -> None:
        """body(value, position, whether it is there) for `count` numbers from `source` on. The lanes of a warp stay together."""
        k, v = self.k, self.v
        i, base = v("i32", f"mov.u32 {{}}, {self.tid};"), v("i32", f"and.b32 {{}}, {self.tid}, {THREADS - 32};")
        top, end = k.label("sweep"), k.label("swept")
        k.place(top)
        self.go(end, v("i1", f"setp.ge.u32 {{}}, {base}, {count};"))
        address = self.at(source, i, 4)
        found = []
        for j in range(self.unroll):
            here = v("i32", f"add.u32 {{}}, {i}, {j * THREADS};")
            inside = v("i1", f"setp.lt.u32 {{}}, {here}, {count};")
            x = v("float", f"mov.f32 {{}}, {fill};")
            k.emit(f"@{inside} ld.global.f32 {x}, [{address}+{4 * j * THREADS}];")
            found.append((x, here, inside))
        for x, here, inside in found:
            body(x, here, inside)
        k.emit(f"add.u32 {i}, {i}, {self.unroll * THREADS};")
        k.emit(f"add.u32 {base}, {base}, {self.unroll * THREADS};")
        self.go(top)
        k.place(end)

    # --- counters -----------------------------------------------------------------------------------------------------
    def clear(self) -> None:
        own = self.own_counter()
        self.k.emit(f"st.shared.u32 [{own}], 0;")
        self.k.emit(f"st.shared.u32 [{own}+{4 * THREADS}], 0;")
        self.barrier()

    def own_counter(self, index: str = "") -> str:
        return self.v("i32", f"mad.lo.u32 {{}}, {index or self.tid}, 4, {self.counters};")

    def count(self, index: str, mass: str | None) -> None:
        """Add a mass, or 1, to a counter. Two words and a carry: shared memory adds 32 bits at a time."""
        k, v = self.k, self.v
        at = self.own_counter(index)
        if mass is None:
            v("i32", f"{ADD} {{}}, [{at}], 1;")
            return
        low, high = self.halves(mass)
        old = v("i32", f"{ADD} {{}}, [{at}], {low};")
        new = v("i32", f"add.u32 {{}}, {old}, {low};")
        carry = v("i32", f"selp.u32 {{}}, 1, 0, {v('i1', f'setp.lt.u32 {{}}, {new}, {low};')};")
        more = v("i32", f"add.u32 {{}}, {high}, {carry};")
        unused = k.reg("i32")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {more}, 0;')} {ADD} {unused}, [{at}+{4 * THREADS}], {more};")

    def put(self, index: str, mass: str, predicate: str) -> None:
        """A counter that nobody else writes."""
        at, (low, high) = self.own_counter(index), self.halves(mass)
        self.k.emit(f"@{predicate} st.shared.u32 [{at}], {low};")
        self.k.emit(f"@{predicate} st.shared.u32 [{at}+{4 * THREADS}], {high};")

    def scan(self) -> str:
        """Running sums of the counters, by doubling; gives the sum of all."""
        k, v = self.k, self.v
        self.barrier()
        own = self.own_counter()
        low, high = (v("i32", f"ld.shared.u32 {{}}, [{own}+{o}];") for o in (0, 4 * THREADS))
        x = v("i64", f"mov.b64 {{}}, {{{low}, {high}}};")
        places = [v("i32", f"mad.lo.u32 {{}}, {self.tid}, 8, {s};") for s in self.sums]
        k.emit(f"st.shared.u64 [{places[0]}], {x};")
        self.barrier()
        reach, turn = 1, 0
        while reach < THREADS:
            has = v("i1", f"setp.ge.u32 {{}}, {self.tid}, {reach};")
            left, back = v("i64", "mov.u64 {}, 0;"), v("i32", f"sub.u32 {{}}, {places[turn]}, {8 * reach};")
            k.emit(f"@{has} ld.shared.u64 {left}, [{back}];")
            x = v("i64", f"add.u64 {{}}, {x}, {left};")
            turn, reach = 1 - turn, 2 * reach
            k.emit(f"st.shared.u64 [{places[turn]}], {x};")
            self.barrier()
        self._sum, self._place, self._last = x, places[turn], self.sums[turn]
        return v("i64", f"ld.shared.u64 {{}}, [{self._last}+{8 * (THREADS - 1)}];")

    def locate(self, goal: str) -> tuple[str, str, str]:
        """The first counter at which the running sum reaches `goal` (1 or more, at most the sum of all): its number, the sum before it,
        and with it."""
        k, v = self.k, self.v
        has = v("i1", f"setp.ne.u32 {{}}, {self.tid}, 0;")
        left, back = v("i64", "mov.u64 {}, 0;"), v("i32", f"sub.u32 {{}}, {self._place}, 8;")
        k.emit(f"@{has} ld.shared.u64 {left}, [{back}];")
        here = self.both(v("i1", f"setp.ge.u64 {{}}, {self._sum}, {goal};"), v("i1", f"setp.lt.u64 {{}}, {left}, {goal};"))
        k.emit(f"@{here} st.shared.u32 [{self.place}], {self.tid};")
        k.emit(f"@{here} st.shared.u64 [{self.before}], {left};")
        k.emit(f"@{here} st.shared.u64 [{self.upto}], {self._sum};")
        self.barrier()
        place = v("i32", f"ld.shared.u32 {{}}, [{self.place}];")
        before, upto = (v("i64", f"ld.shared.u64 {{}}, [{s}];") for s in (self.before, self.upto))
        self.barrier()
        return place, before, upto
