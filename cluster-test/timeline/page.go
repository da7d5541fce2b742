package timeline

import (
	"fmt"
	"html/template"
	"io"
	"os"
	"strings"
	"time"
)

// HTML writes the page.
func (r *Run) HTML(w io.Writer) error {
	type fault struct {
		Number                     int
		Span                       Span
		Targets, At, On, Gap, Well string
	}
	var faults []fault
	for i, without := range r.Gaps() {
		s := r.Spans[i]
		faults = append(faults,
			fault{i + 1, s, strings.Join(s.Targets, ", "), clock(s.Begin), short(s.End - s.Begin),
				gap(without, s.Unheard), short(s.Settled - s.End)})
	}
	acked, failed := 0, 0
	for _, s := range r.Samples {
		if s.Aside {
			continue
		}
		if s.OK {
			acked++
		} else {
			failed++
		}
	}
	return page.Execute(w, map[string]any{
		"Run": r, "SVG": template.HTML(r.SVG()), "Lines": r.Lines(), "Faults": faults,
		"Acked": acked, "Failed": failed, "Length": r.Length.Round(time.Second), "Bucket": bucketTime,
	})
}

// WriteFile writes the page to a file.
func (r *Run) WriteFile(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = r.HTML(f)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("write the timeline %s: %w", path, err)
	}
	return nil
}

var page = template.Must(template.New("page").Funcs(template.FuncMap{"short": short, "gap": gap}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{.Run.Title}}</title>
<style>
:root { --ink: #1b2733; --soft: #66727f; --line: #dfe4e9; --paper: #fff; --good: #3f9b6b; --bad: #cf3f3f; --fault: #e8b23a; --met: #f6dfa8; --delay: #3c6fb4; }
@media (prefers-color-scheme: dark) { :root { --ink: #dde5ec; --soft: #93a1af; --line: #2d3842; --paper: #141a20; --good: #4fb07c; --bad: #e25b5b; --fault: #b98a22; --met: #4d4020; --delay: #6d9fe0; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1200px; margin: 24px auto; padding: 0 16px; }
h1 { font-size: 20px; margin: 0 0 4px } h2 { font-size: 15px; margin: 28px 0 8px }
p { margin: 4px 0 } code { font: 12px ui-monospace, monospace } .soft { color: var(--soft) } .bad { color: var(--bad); white-space: pre-wrap }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } td, th { padding: 3px 14px 3px 0; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top } th { font-weight: 600; color: var(--soft) }
td.n, th.n { text-align: right }
svg { width: 100%; height: auto; display: block } svg text { font: 10px system-ui, sans-serif; fill: var(--ink) }
.label { text-anchor: end; fill: var(--soft) } .time { text-anchor: middle; fill: var(--soft) } .name { pointer-events: none }
.tick, .grid { stroke: var(--line); stroke-width: .6 } .usual { stroke: var(--soft); stroke-width: .5; stroke-dasharray: 2 3 }
.fault { fill: var(--fault) } .mending { fill: var(--fault); opacity: .45 } .met { fill: var(--met) }
.acked { fill: var(--good) } .failed, .none { fill: var(--bad) } .none { opacity: .8 } .delay { stroke: var(--delay); stroke-width: 1.6; fill: none }
</style>
<h1>{{.Run.Title}}</h1>
<p>{{.Acked}} writes acknowledged and {{.Failed}} not in {{.Length}}.</p>
{{range .Run.Facts}}<p>{{.}}</p>
{{end}}{{range .Run.Verdict}}<p class="bad">FAILURE {{.}}</p>
{{else}}<p>Nothing wrong was found.</p>
{{end}}<p class="soft">Repeat with <code>{{.Run.Repeat}}</code></p>
<h2>Faults against writes</h2>
<p class="soft">A bar is a fault while it is on; what is pale after it is the time until all was well again. Yellow in a server's lane: it was met. Red: no write was acknowledged in {{.Bucket}} in which somebody wanted to write all the time, or the server's answer was no acknowledgement. Below: how long acknowledged writes took, median to longest.</p>
{{.SVG}}
<h2>By kind of fault</h2>
<table><tr><th>fault<th class="n">times<th class="n">write gap, median<th class="n">worst<th class="n">whole again, median<th class="n">worst</tr>
{{range .Lines}}<tr><td>{{.Kind}}<td class="n">{{.Times}}<td class="n">{{gap .GapMedian .Unheard}}<td class="n">{{gap .GapWorst .Unheard}}<td class="n">{{short .SettledMedian}}<td class="n">{{short .SettledMax}}</tr>
{{end}}</table>
<h2>One by one</h2>
<table><tr><th class="n">no.<th class="n">at<th>fault<th>met<th class="n">on for<th class="n">write gap<th class="n">whole after<th>what came of it</tr>
{{range .Faults}}<tr><td class="n">{{.Number}}<td class="n">{{.At}}<td>{{.Span.Kind}}<td>{{.Targets}}<td class="n">{{.On}}<td class="n">{{.Gap}}<td class="n">{{.Well}}<td>{{.Span.Note}}</tr>
{{end}}</table>
</html>
`))
