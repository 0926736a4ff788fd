// The editor of SQL, in a shadow root: there its styles need no exception from the content security policy.
import { autocompletion, completionKeymap } from '@codemirror/autocomplete';
import { defaultKeymap, history, historyKeymap } from '@codemirror/commands';
import { SQLDialect, sql } from '@codemirror/lang-sql';
import { HighlightStyle, syntaxHighlighting } from '@codemirror/language';
import { setDiagnostics } from '@codemirror/lint';
import { EditorState } from '@codemirror/state';
import { EditorView, keymap, lineNumbers, placeholder } from '@codemirror/view';
import { tags } from '@lezer/highlight';

/** The words of this SQL, and none of others. */
const dialect = SQLDialect.define({
  keywords: `admin alter and any application applications as asc at avro back between burst bursts by cascade case cast change
    checkpoints create cross csv cube current date debezium default define desc describe distinct drop else emit end event except
    exists expires explain false filter first following for format from full function functions grace grant grants group grouping
    having if in input inner insert intersect interval into is join json key label last lateral left like limit match_recognize
    measures model not null offset on or order ordinality outer output over partition pattern pause per preceding primary protobuf
    publish qualify queries query range raw read redirect refresh replace resume revoke right rollup rotate row rows secret secrets
    select server set sets show sink sinks skip source sources subscribe table tables tenant tenants then time to token tokens topic
    true unbounded union unnest user users using values view views watermark when where window with within workers zone`.replace(/\s+/g, ' '),
  types: 'array bigint boolean bytes date decimal double integer interval map row text time timestamp timestamptz varchar',
  specialVar: '$',
});

const colours = HighlightStyle.define([
  { tag: tags.keyword, color: 'var(--word)' },
  { tag: [tags.string, tags.special(tags.string)], color: 'var(--text)' },
  { tag: [tags.number, tags.bool, tags.null], color: 'var(--value)' },
  { tag: tags.comment, color: 'var(--quiet)' },
]);

const looks = EditorView.theme({
  '&': { color: 'var(--ink)', backgroundColor: 'var(--field)', fontSize: '14px' },
  // The field around it shows the focus.
  '&.cm-focused': { outline: 'none' },
  '.cm-content': { caretColor: 'var(--ink)', fontFamily: 'ui-monospace, monospace', minHeight: '8em' },
  '.cm-scroller': { maxHeight: '28em', overflow: 'auto' },
  '.cm-cursor': { borderLeftColor: 'var(--ink)' },
  '.cm-gutters': { backgroundColor: 'var(--field)', color: 'var(--quiet)', border: 'none' },
  '.cm-selectionBackground, &.cm-focused .cm-selectionBackground': { backgroundColor: 'var(--chosen) !important' },
  // Not a picture within the styles.
  '.cm-lintRange-error': { backgroundImage: 'none', textDecoration: 'underline wavy var(--bad)' },
  '.cm-tooltip': { backgroundColor: 'var(--page)', color: 'var(--ink)', border: '1px solid var(--line)' },
});

/** Opens an editor in an element. `now.current` has `changed(text)`, `names()` and `run()`. */
export function open(place, label, text, now) {
  const root = place.shadowRoot || place.attachShadow({ mode: 'open' });
  const complete = async (context) => {
    const word = context.matchBefore(/[\w"]+/);
    if (!word && !context.explicit) return null;
    const options = (await now.current.names?.()) || [];
    return { from: word ? word.from : context.pos, options, validFor: /^[\w"]*$/ };
  };
  const run = { key: 'Mod-Enter', run: () => (now.current.run ? (now.current.run(), true) : false) };
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(), history(), sql({ dialect, upperCaseKeywords: true }), syntaxHighlighting(colours), looks,
        EditorState.languageData.of(() => [{ autocomplete: complete }]), autocompletion(),
        // Tab leaves the field, as everywhere else in a page.
        keymap.of([run, ...completionKeymap, ...defaultKeymap, ...historyKeymap]),
        EditorView.contentAttributes.of({ 'aria-label': label }), placeholder('SELECT ...'),
        EditorView.updateListener.of((update) => update.docChanged && now.current.changed(update.state.doc.toString())),
      ],
    }),
  });
  return {
    /** Marks where a problem is. */
    mark(problem) {
      const { doc } = view.state;
      if (!problem?.line || problem.line > doc.lines) {
        view.dispatch(setDiagnostics(view.state, []));
        return;
      }
      const line = doc.line(problem.line);
      const from = Math.min(line.from + Math.max(0, (problem.column || 1) - 1), line.to);
      const word = /^\S+/.exec(doc.sliceString(from, line.to))?.[0].length || 1;
      const message = problem.message + (problem.hint ? `\n${problem.hint}` : '');
      view.dispatch(setDiagnostics(view.state, [{ from, to: Math.min(from + word, doc.length), severity: 'error', message }]));
    },
    close: () => view.destroy(),
  };
}
