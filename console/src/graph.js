// A dataflow as a graph of boxes and arrows, laid out from left to right.
import dagre from '@dagrejs/dagre';
import { html, useMemo } from './ui.js';

const WIDTH = 210, LINE = 18, PAD = 10;

/**
 * `nodes`: `{ id, title, lines, tone, note }`; `edges`: `{ from, to, label, kind }`. A tone is shown by the border and by the
 * note, in words.
 */
export function Graph({ nodes, edges, chosen, choose, label }) {
  const shape = nodes.map((node) => `${node.id}:${node.lines.length}`).join() + edges.map((edge) => `${edge.from}>${edge.to}`).join();
  const laid = useMemo(() => {
    const graph = new dagre.graphlib.Graph({ multigraph: true });
    graph.setGraph({ rankdir: 'LR', nodesep: 24, ranksep: 64, marginx: 8, marginy: 8 });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const node of nodes) graph.setNode(String(node.id), { width: WIDTH, height: PAD * 2 + LINE * (node.lines.length + 1) });
    edges.forEach((edge, place) => graph.setEdge(String(edge.from), String(edge.to), { width: 8, height: 8 }, String(place)));
    dagre.layout(graph);
    return graph;
  }, [shape]);
  const { width, height } = laid.graph();
  const path_of = (edge, place) => {
    const { points } = laid.edge(String(edge.from), String(edge.to), String(place));
    return points.map(({ x, y }, at) => `${at ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`).join('');
  };
  return html`<div class="scroll graph" tabindex="0" role="group" aria-label=${label}>
    <svg width=${Math.ceil(width)} height=${Math.ceil(height)} style=${{ minWidth: `${Math.ceil(width * 0.75)}px` }} viewBox=${`0 0 ${Math.ceil(width)} ${Math.ceil(height)}`} role="group" aria-label=${label}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" /></marker></defs>
      ${edges.map((edge, place) => html`<g class=${'edge ' + (edge.kind || '')} key=${`e${place}`}><path d=${path_of(edge, place)} marker-end="url(#tip)" /><title>${edge.label}</title></g>`)}
      ${nodes.map((node) => {
        const { x, y, height: tall } = laid.node(String(node.id));
        const act = () => choose?.(node.id);
        return html`<g class=${`node ${node.tone || ''} ${node.id === chosen ? 'chosen' : ''}`} key=${node.id} tabindex="0" role="button"
            aria-pressed=${node.id === chosen}
            transform=${`translate(${x - WIDTH / 2} ${y - tall / 2})`} onClick=${act}
            onKeyDown=${(event) => (event.key === 'Enter' || event.key === ' ') && (event.preventDefault(), act())}>
          <rect width=${WIDTH} height=${tall} rx="6" />
          <text x=${PAD} y=${PAD + 12} class="title">${cut(node.title)}</text>
          ${node.lines.map((line, at) => html`<text x=${PAD} y=${PAD + 12 + LINE * (at + 1)}>${cut(line)}</text>`)}
          ${node.note ? html`<text x=${WIDTH - PAD} y=${PAD + 12} class="note">${node.note}</text>` : null}
        </g>`;
      })}
    </svg></div>`;
}

const cut = (text) => (text.length > 31 ? text.slice(0, 30) + '…' : text);
