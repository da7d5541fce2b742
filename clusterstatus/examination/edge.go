package examination

import (
	"fmt"
	"strings"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/terminal"
)

// mostEdge bounds the doctor's findings on Services, and those on routes.
const mostEdge = 20

// edge adds findings on Services that wait for an address, and on routes.
func (e *Examination) edge() {
	of := e.Status.Edge
	if of == nil {
		return
	}
	e.bgp(of.BGP)
	found, more := 0, of.MoreRoutes
	for _, s := range of.Waiting {
		if s.Reason == clusterstatus.PoolExhausted { // the status has it
			continue
		}
		if found++; found > mostEdge {
			more++
			continue
		}
		kind, object := s.Object()
		namespace, name, _ := strings.Cut(object, "/")
		e.Add(clusterstatus.Warning{Severity: clusterstatus.Attention,
			Mend: "barque kubectl -n " + namespace + " describe " + strings.ToLower(kind) + " " + name,
			Text: fmt.Sprintf("%s %s waits for an address%s (%s): %s", kind, object,
				clusterstatus.SinceText(s.Since), s.Reason, s.Message)})
	}
	for i, r := range of.Routes {
		if i >= mostEdge {
			more += len(of.Routes) - i
			break
		}
		e.Add(clusterstatus.Warning{Severity: clusterstatus.Attention, Mend: r.Mend, Text: r.Object + ": " + r.Text})
	}
	if more > 0 {
		e.Note("%s of Services of type LoadBalancer and of routes are not listed: barque cluster status -o json",
			terminal.Plural(more, "more fault", "more faults"))
	}
}
