package clusterstatus

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/barque/barque/internal/terminal"
)

// BGPStatus are the nodes' sessions with routers.
type BGPStatus struct {
	Sessions    int `json:"sessions"`
	Established int `json:"established"`
	Nodes       int `json:"nodes"`
	// List has those that are not established first, and at most mostSessions.
	List []BGPSession `json:"list,omitempty"`
}

// BGPSession is a node's session with a router.
type BGPSession struct {
	Node        string `json:"node"`
	Peer        string `json:"peer"` // the BGPPeer
	Address     string `json:"address"`
	Established bool   `json:"established"`
	// Since is when the session was established or lost.
	Since time.Time `json:"since,omitzero"`
	// Routes are announced. Restart is set if the router keeps them while the process is away.
	Routes  int    `json:"routes"`
	Restart bool   `json:"restart,omitempty"`
	Problem string `json:"problem,omitempty"`
}

const (
	// mostSessions bounds the sessions in a status: a large cluster has thousands.
	mostSessions = 256
	// sessionPatience is how long a session may be missing before the status warns.
	sessionPatience = 30 * time.Second
)

// BGPStatusOf is the status of all sessions; nil for none.
func BGPStatusOf(all []BGPSession) *BGPStatus {
	if len(all) == 0 {
		return nil
	}
	out, nodes := BGPStatus{Sessions: len(all)}, map[string]bool{}
	all = slices.Clone(all)
	for _, s := range all {
		nodes[s.Node] = true
		if s.Established {
			out.Established++
		}
	}
	slices.SortFunc(all, func(a, b BGPSession) int {
		if a.Established != b.Established {
			if a.Established {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Peer, b.Peer))
	})
	out.Nodes, out.List = len(nodes), all[:min(len(all), mostSessions)]
	return &out
}

// Missing are the sessions that are missed for longer than they may be.
func (b *BGPStatus) Missing(now time.Time) (out []BGPSession) {
	if b == nil {
		return nil
	}
	for _, s := range b.List {
		if !s.Established && now.Sub(s.Since) >= sessionPatience {
			out = append(out, s)
		}
	}
	return out
}

// bgp warns of missing sessions. The reason is that of the first one.
func (w *warner) bgp(b *BGPStatus) {
	missing := b.Missing(w.status.Time)
	if len(missing) == 0 {
		return
	}
	var names []string
	for _, s := range missing {
		names = append(names, s.Node+" with "+s.Peer)
	}
	first := missing[0]
	w.add(Attention, "", "", "barque kubectl describe node "+first.Node,
		"%s missing: %s; %s: %s", terminal.Plural(len(missing), "BGP session is", "BGP sessions are"), someNames(names),
		first.Address, cmp.Or(first.Problem, "it is being made"))
}

// Text describes the sessions in one line.
func (b *BGPStatus) Text() string {
	return fmt.Sprintf("%d of %s of %s established", b.Established,
		terminal.Plural(b.Sessions, "session", "sessions"), terminal.Plural(b.Nodes, "node", "nodes"))
}
