package clusterstatus

import (
	"strings"
	"time"

	"github.com/barque/barque/membership/datakeys"
)

// dataKeysPatience is the time after which a change of the data keys is worth a warning. The
// command that begins it waits as long.
const dataKeysPatience = 10 * time.Minute

// dataKeys warns of a change of the data keys that does not end, by the view of the leader, which
// drives it. It also warns of servers that do not follow, or cannot read all objects.
func (w *warner) dataKeys() {
	for i := range w.status.Members {
		m := &w.status.Members[i]
		p := m.DataKeys
		if p == nil {
			continue
		}
		if m.Name == w.status.Leader && p.Step != datakeys.AtRest && len(p.Waiting) > 0 &&
			w.status.Time.Sub(p.Began) > dataKeysPatience {
			w.add(Attention, "", "", "barque secrets-encrypt status",
				"the change of the data keys, which began at %s, has not ended: %s; it waits: %s",
				p.Began.UTC().Format(time.RFC3339), p.Step.Text(), strings.Join(p.Waiting, "; "))
		}
		if p.Problem != "" {
			w.add(Attention, m.Name, m.Name, w.by.Look(m.Name, m.Role), "server %s does not follow the data keys: %s",
				m.Name, p.Problem)
		}
	}
}
