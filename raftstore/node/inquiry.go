package node

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"
)

// inquiry asks the other servers of the cluster what they know of a recovery that this one was told of. The configuration that this server
// has may be old, as when it was away: so it also asks those of whom it hears by that, and those that Config.Peers gives.
type inquiry struct {
	node     *Node
	claim    claim
	question hello
	began    time.Time // what it says of how long ago the recovery was is of then

	mu      sync.Mutex
	words   map[string]word
	led     bool              // one follows a leader, or leads
	unknown map[string]string // members of whom others know, and this server does not: where they are
}

// ask returns what the servers say, this one too, now or of late.
func (i *inquiry) ask() map[string]word {
	n := i.node
	i.words = n.heirs.sayings(i.claim.Succession, time.Now())
	i.unknown = make(map[string]string)
	asked := map[string]bool{n.cfg.Stream.Addr(): true, i.claim.from: true}
	var asking []func(context.Context) ([]byte, error)
	for _, m := range n.others() {
		addr := n.book.of(m.ID, m.Address)
		if m.ID == i.claim.By || addr == i.claim.from {
			continue
		}
		asked[addr], asked[m.Address] = true, true
		asking = append(asking, func(ctx context.Context) ([]byte, error) { return n.tell(ctx, m, callHello, i.question) })
	}
	i.round(asking)
	elsewhere := slices.Sorted(maps.Values(i.unknown))
	if n.cfg.Peers != nil {
		elsewhere = append(elsewhere, n.cfg.Peers()...)
	}
	asking = nil
	for _, addr := range elsewhere {
		if asked[addr] {
			continue
		}
		asked[addr] = true
		asking = append(asking, func(ctx context.Context) ([]byte, error) {
			return n.tellTo(ctx, n.strangers.to(addr), callHello, i.question)
		})
	}
	i.round(asking)
	i.words[n.id.ServerID] = i.question.Word
	return i.words
}

func (i *inquiry) round(asking []func(context.Context) ([]byte, error)) {
	n := i.node
	ctx, cancel := context.WithTimeout(n.ctx, min(n.cfg.Timeouts.Call, n.cfg.Timeouts.Heartbeat/2))
	defer cancel()
	var answers sync.WaitGroup
	for _, ask := range asking {
		answers.Go(func() {
			var answer hello
			if data, err := ask(ctx); err == nil && json.Unmarshal(data, &answer) == nil {
				i.take(answer)
			}
		})
	}
	answers.Wait()
}

func (i *inquiry) take(answer hello) {
	i.mu.Lock()
	defer i.mu.Unlock()
	self := i.node.id.ServerID
	if answer.ID == self || answer.ID == "" || time.Since(i.began) > presenceSlack { // this process was suspended: whoever answers may have looked for another moment
		return
	}
	if answer.Leader != "" && answer.Leader != self {
		i.led = true
	}
	if answer.Word == unknownWord {
		delete(i.words, answer.ID) // also what it said before
	} else {
		i.words[answer.ID] = answer.Word
	}
	for id, addr := range answer.Known {
		if _, ok := i.node.member(id); !ok && id != self {
			i.unknown[id] = addr
		}
	}
}
