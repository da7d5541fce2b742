package status

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/barque/barque/raftstore/group"
)

// LeaderlessAfter is the longest time of an election. Without a leader for longer, the reasons are
// logged.
const LeaderlessAfter = 5 * time.Second

const (
	leaderlessLook  = time.Second
	leaderlessAgain = 30 * time.Second // interval of repetitions
)

// TellOfNoLeader logs the reasons and the remedy when this server finds no leader for long: nothing
// can be read or written then. It ends with ctx.
func (b *Board) TellOfNoLeader(ctx context.Context, logger *slog.Logger) {
	ticker := time.NewTicker(leaderlessLook)
	defer ticker.Stop()
	since, told := time.Now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if id := b.server.Leader(); id != "" {
			if !told.IsZero() {
				logger.Info("there is a leader again", "leader", id, "after", time.Since(since).Round(time.Second))
			}
			since, told = time.Now(), time.Time{}
			continue
		}
		if time.Since(since) >= LeaderlessAfter && time.Since(told) >= leaderlessAgain {
			told = time.Now()
			b.explainNoLeader(ctx, logger.With("for", told.Sub(since).Round(time.Second)))
		}
	}
}

func (b *Board) explainNoLeader(ctx context.Context, log *slog.Logger) {
	self := b.server.ID()
	if _, ok := group.Find(b.server.Members(), self); !ok {
		log.Warn("this server is no member of the cluster yet, or hears nothing of it; it waits to be let in", "server",
			self)
		return
	}
	voters, alive := 0, 0
	var missing []string
	for _, p := range b.All(ctx) {
		switch {
		case !p.Member.Voter:
		case p.Status != nil:
			voters, alive = voters+1, alive+1
		default:
			voters++
			missing = append(missing, fmt.Sprintf("%s (%s): %s", p.Member.Name, p.Member.Address, p.Error))
		}
	}
	log.Warn("the store has no leader, so nothing can be read or written", "answer", alive, "voters", voters, "mend",
		noLeaderRemedy(alive, voters), "missing", missing)
}

// noLeaderRemedy tells two cases apart: voters are missing, or those that are there do not agree.
func noLeaderRemedy(alive, voters int) string {
	if needed := voters/2 + 1; alive < needed {
		return fmt.Sprintf("%d servers are needed: start the others", needed)
	}
	return "they elect one; if that does not end, look for machines without free CPU, slow disks, " +
		"and servers that do not reach each other (`barque cluster status`)"
}
