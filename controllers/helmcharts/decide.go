package helmcharts

import "github.com/barque/barque/controllers/helmcharts/release"

// step is what a look at a HelmChart leads to. One step is taken at a time.
type step string

const (
	nothing   step = "nothing"
	forget    step = "forget"    // the object may go: it has no release
	interrupt step = "interrupt" // marks a half-done operation
	install   step = "install"
	upgrade   step = "upgrade"
	uninstall step = "uninstall"
	wait      step = "wait" // for a change of the spec
)

// decide chooses the next step towards what a HelmChart asks for, by the last record of its
// release.
//
//	none ──install──▶ pending-install ──▶ deployed ──upgrade──▶ pending-upgrade ──▶ deployed
//	                        │                                        │
//	                        └─────────────── interrupt ──────────────┘
//	                                             ▼
//	   uninstalling ◀─reinstall─ failed ──install, upgrade: when it was interrupted,
//	                                      or what is asked for has changed──▶ …
func decide(state release.State, wanted, policy string, deleted bool) step {
	switch {
	case deleted && !state.Exists:
		return forget
	case deleted:
		return uninstall
	case !state.Exists:
		return install
	case state.Pending:
		return interrupt
	}
	switch state.Status {
	case release.Deployed:
		if state.Digest == wanted {
			return nothing
		}
		return upgrade
	case release.Uninstalling:
		return uninstall
	case release.Failed:
		if !state.Interrupted && state.Digest == wanted {
			switch policy {
			case abort:
				return wait
			case reinstall:
				return uninstall
			}
		}
	}
	if state.HasDeployed {
		return upgrade
	}
	return install
}
