package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/check"
)

const (
	singles  = 5 // keys that are written alone
	groups   = 2 // of keys that are written together
	expiring = 6 // keys with a time to live
	maxTTL   = 2 * time.Second
)

// client asks for something, waits, and asks for something else, each time by any server that runs.
type client struct {
	c    *cluster
	id   int
	rnd  *rand.Rand
	last uint64 // the newest revision in its answers
	view []raftstore.Item
}

func (c *cluster) newClient(id int) *client {
	return &client{c: c, id: id, rnd: rand.New(rand.NewPCG(c.opts.Seed, uint64(300+id)))}
}

// run ends with ctx.
func (cl *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		if s := cl.c.servers[cl.rnd.IntN(len(cl.c.servers))]; s.live() != nil {
			limit, cancel := limited(ctx, time.Duration(200+cl.rnd.IntN(2500))*time.Millisecond)
			cl.ask(limit, s, s.live())
			cancel()
		}
		pause(ctx, time.Duration(cl.rnd.Int64N(int64(2*cl.c.opts.Pace))))
	}
}

func (cl *client) ask(ctx context.Context, s *server, p *process) {
	if p == nil {
		return
	}
	switch n := cl.rnd.IntN(100); {
	case n < 30:
		cl.read(ctx, s, p, check.Linearizable)
	case n < 37:
		cl.read(ctx, s, p, check.Stale)
	case n < 45:
		cl.read(ctx, s, p, check.AtLeast)
	case n < 50:
		cl.read(ctx, s, p, check.At)
	case n < 53:
		p.Compact(ctx, cl.last-min(cl.last, uint64(cl.rnd.IntN(100))))
	default:
		cl.write(ctx, s, p, cl.transaction())
	}
}

func (cl *client) read(ctx context.Context, s *server, p *process, kind check.ReadKind) {
	read := check.Read{Client: cl.id, Server: s.index, Life: p.life, Kind: kind, Call: cl.c.record.Now()}
	opts := raftstore.ViewOptions{Stale: kind == check.Stale}
	switch kind {
	case check.AtLeast:
		if read.Asked = cl.last; cl.last == 0 {
			return
		}
		opts.MinRevision = cl.last
	case check.At:
		if cl.last == 0 {
			return
		}
		read.Asked = max(1, cl.last-min(cl.last, uint64(cl.rnd.IntN(40))))
		opts.Revision = read.Asked
	}
	v, err := p.api.View(ctx, opts)
	if !s.heard(p, func() {}) {
		return
	}
	if err != nil {
		if kind == check.At && errors.Is(err, raftstore.ErrFutureRevision) {
			cl.c.problem(history.Linearizes, "revision %d, which was told before, is called a future one by server %d",
				read.Asked, s.index)
		}
		return
	}
	cl.c.record.Read(read, v)
	cl.last = max(cl.last, v.Revision())
	if kind != check.At {
		cl.view = cl.view[:0]
		v.Ascend("", "", func(item raftstore.Item) bool { cl.view = append(cl.view, item); return true })
	}
}

func (cl *client) write(ctx context.Context, s *server, p *process, txn raftstore.Txn) {
	w := check.Write{Client: cl.id, Server: s.index, Txn: txn, Call: cl.c.record.Now()}
	result, err := p.api.Commit(ctx, txn)
	if !s.heard(p, func() {}) {
		result, err = raftstore.Result{}, fmt.Errorf("%w: the server has crashed", raftstore.ErrUnknownOutcome)
	}
	cl.c.record.Write(w, result, err)
	cl.last = max(cl.last, result.Revision)
}

// transaction draws one: of one key or several, with preconditions or without.
func (cl *client) transaction() raftstore.Txn {
	switch n := cl.rnd.IntN(10); {
	case n < 5:
		return cl.txn([]string{fmt.Sprintf("/s/%d", cl.rnd.IntN(singles))}, 0)
	case n < 8:
		g := cl.rnd.IntN(groups)
		return cl.txn(
			pick(cl.rnd, []string{fmt.Sprintf("/m/%d/a", g), fmt.Sprintf("/m/%d/b", g), fmt.Sprintf("/m/%d/c", g)},
				1+cl.rnd.IntN(3)), 0)
	default:
		return cl.txn([]string{fmt.Sprintf("/t/%d", cl.rnd.IntN(expiring))},
			100*time.Millisecond+time.Duration(cl.rnd.Int64N(int64(maxTTL))))
	}
}

func (cl *client) txn(keys []string, ttl time.Duration) raftstore.Txn {
	var txn raftstore.Txn
	known := make(map[string]uint64)
	for _, item := range cl.view {
		known[item.Key] = item.ModRevision
	}
	conditional := cl.rnd.IntN(2) == 0
	for _, key := range keys {
		if conditional {
			txn.Require = append(txn.Require, raftstore.Precondition{Key: key, ModRevision: known[key]})
		}
		if cl.rnd.IntN(5) == 0 {
			txn.Ops = append(txn.Ops, raftstore.Op{Kind: raftstore.Delete, Key: key})
		} else {
			value := fmt.Sprintf("v%d", cl.c.values.next())
			txn.Ops = append(txn.Ops, raftstore.Op{Kind: raftstore.Put, Key: key, Value: []byte(value), TTL: ttl})
		}
	}
	return txn
}

// writeAsLeader writes with the fence of each term in which the server leads. It goes on for a
// while after the term, as a deposed controller does. It ends with the process.
func (s *server) writeAsLeader(p *process) {
	cl := s.c.newClient(1000 + 100*s.index + p.life)
	for {
		leading, term, err := p.AwaitLeadership(p.ctx)
		if err != nil {
			return
		}
		led := check.LedTerm{Server: s.index, Life: p.life, Term: term, Revision: p.Revision()}
		if !s.heard(p, func() { s.c.record.LedTerm(led) }) {
			return
		}
		for over := 0; over < 3; {
			if leading.Err() != nil {
				over++
			}
			by := s.c.servers[cl.rnd.IntN(len(s.c.servers))]
			txn := cl.txn([]string{fmt.Sprintf("/s/%d", cl.rnd.IntN(singles))}, 0)
			txn.Term = term
			if to := by.live(); to != nil {
				ctx, cancel := limited(context.Background(), time.Second)
				cl.write(ctx, by, to, txn)
				cancel()
			}
			pause(p.ctx, time.Duration(cl.rnd.IntN(200))*time.Millisecond)
			if p.ctx.Err() != nil {
				return
			}
		}
	}
}
