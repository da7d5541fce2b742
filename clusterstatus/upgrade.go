package clusterstatus

import "github.com/barque/barque/membership/gossip"

// UpgradeStatus is an upgrade of the cluster that is under way, or has not gone well.
type UpgradeStatus struct {
	Name    string `json:"name"` // of the Upgrade
	Version string `json:"version"`
	Phase   string `json:"phase"`
	Message string `json:"message,omitempty"`
	Text    string `json:"text"` // all of it in a line
	Done    int    `json:"done"` // nodes in the version
	Total   int    `json:"total"`
	Failed  bool   `json:"failed,omitempty"`
}

// upgrade warns of an upgrade that has not gone well. One that is under way is no fault: the status
// has it, and servers of two versions are its course.
func (w *warner) upgrade() {
	u := w.status.Upgrade
	if u == nil || !u.Failed {
		return
	}
	w.add(Attention, "", "", "see docs/upgrading.md; the same `barque upgrade` again goes on with it, and `barque kubectl delete upgrade "+
		u.Name+"` gives it up", "the upgrade to version %s has stopped: %s", u.Version, u.Message)
}

// Lives reports whether gossip sees the member alive.
func (m *MemberStatus) Lives() bool { return m.Gossip == gossip.Alive }
