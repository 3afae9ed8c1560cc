// Theme (system, then the button), tooltips in place of the slow native ones, tabs, tables sorted by a click, repeated layers folded, search.
const root=document.documentElement, store=k=>{try{return localStorage.getItem(k)}catch(e){return null}};
root.dataset.theme=store('tw-theme')||(matchMedia('(prefers-color-scheme: dark)').matches?'dark':'light');
document.getElementById('theme').onclick=()=>{root.dataset.theme=root.dataset.theme=='dark'?'light':'dark';try{localStorage.setItem('tw-theme',root.dataset.theme)}catch(e){}};
const tip=document.getElementById('tip');
document.querySelectorAll('[data-tip]').forEach(e=>{e.querySelector('title')?.remove();
 e.onmousemove=m=>{tip.textContent=e.dataset.tip;tip.style.display='block';
  tip.style.left=Math.min(m.clientX+14,innerWidth-tip.offsetWidth-8)+'px';tip.style.top=Math.min(m.clientY+14,innerHeight-tip.offsetHeight-8)+'px'};
 e.onmouseleave=()=>tip.style.display='none'});
document.querySelectorAll('.tabs').forEach(t=>{const panes=[...t.parentNode.querySelectorAll('pre')],keys=[...t.children];
 keys.forEach((b,i)=>b.onclick=()=>{keys.forEach((k,j)=>k.classList.toggle('on',i==j));panes.forEach((p,j)=>p.hidden=i!=j)})});
document.querySelectorAll('table.sort th').forEach(h=>h.onclick=()=>{const i=h.cellIndex,b=h.closest('table').tBodies[0],up=h.dataset.up=h.dataset.up=='1'?'0':'1',f=b.querySelector('tr.fold');
 if(f){f.remove();unfold(true);again.forEach(r=>r.classList.remove('again'))} // a sorted table has no layers
 [...b.rows].sort((p,q)=>{const v=r=>r.cells[i].dataset.v??r.cells[i].textContent,x=v(p),y=v(q),n=x-y;return (isNaN(n)?x.localeCompare(y):n)*(up=='1'?-1:1)}).forEach(r=>b.append(r))});
const fold=document.querySelector('tr.fold button'),again=[...document.querySelectorAll('tr.again')];
const unfold=on=>{again.forEach(r=>r.hidden=!on);if(fold)fold.textContent=(on?'▾':'▸')+fold.textContent.slice(1)};
if(fold)fold.onclick=()=>unfold(again[0].hidden);
document.getElementById('find').oninput=e=>{const words=e.target.value.toLowerCase().split(/\s+/).filter(Boolean),has=t=>words.every(w=>t.toLowerCase().includes(w));
 document.querySelectorAll('table.sort tbody tr').forEach(r=>r.hidden=words.length?r.classList.contains('fold')||!has(r.textContent):r.classList.contains('again'));
 if(!words.length&&fold?.isConnected)unfold(false);
 document.querySelectorAll('main details').forEach(d=>d.hidden=words.length>0&&!has(d.textContent));
 document.querySelectorAll('g.box').forEach(b=>b.style.opacity=words.length&&!has(b.textContent+b.dataset.tip)?.15:1)};
const open=()=>{const d=document.getElementById(location.hash.slice(1));if(d&&d.tagName=='DETAILS')d.open=true;if(d&&d.hidden)unfold(true)};addEventListener('hashchange',open);open();
const first=document.querySelector('svg.graph g.box rect');if(first){const d=first.closest('.scroll');d.scrollLeft=first.getAttribute('x')-d.clientWidth/2+105}
