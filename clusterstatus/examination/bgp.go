package examination

import (
	"cmp"
	"fmt"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/terminal"
)

// bgp adds a finding for each missing session but the first, which the status has, and a note of
// those that are established.
func (e *Examination) bgp(b *clusterstatus.BGPStatus) {
	if b == nil {
		return
	}
	missing := b.Missing(e.Status.Time)
	for i, s := range missing {
		if i == 0 {
			continue
		}
		if i > mostEdge {
			e.Note("%s are not listed: barque cluster status -o json",
				terminal.Plural(len(missing)-i, "more missing BGP session", "more missing BGP sessions"))
			break
		}
		e.Add(clusterstatus.Warning{Severity: clusterstatus.Attention, Mend: "barque kubectl get bgppeer " + s.Peer + " -o yaml",
			Text: fmt.Sprintf("node %s has no BGP session with %s (%s)%s: %s", s.Node, s.Peer, s.Address,
				clusterstatus.SinceText(s.Since), cmp.Or(s.Problem, "it is being made"))})
	}
	if b.Established > 0 {
		e.Note("BGP: %s", b.Text())
	}
}
