package election

import "context"

// nominate makes the server with the longest log campaign. A transfer of leadership would need the
// goroutine of Raft that waits for the disk. If it fails, the others elect a leader when they have
// missed the heartbeats for long enough.
func (e *Elector) nominate(ctx context.Context) {
	best, found := Answer{}, false
	for _, answer := range e.ask(ctx, question{Leader: e.opts.ID}) {
		if answer.WouldCampaign && (!found || best.before(answer)) {
			best, found = answer, true
		}
	}
	if !found {
		return
	}
	m, ok := e.member(string(best.ID))
	if !ok || !e.server.DiskHangs() { // it writes again
		return
	}
	e.opts.Logger.Info("another server is asked to lead", "server", m.ID)
	err := e.server.TellToCampaign(m)
	if err != nil {
		e.opts.Logger.Warn("the other server could not be asked to lead; it will elect itself later", "server", m.ID,
			"err", err)
	}
}
