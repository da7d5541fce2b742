package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/cluster-test/store"
	"github.com/barque/barque/cluster-test/store/member"
)

const (
	// around is for how long clients write while a leader is lost, and killAfter when it is.
	around    = 4 * time.Second
	killAfter = time.Second
)

// loss is a way to lose a leader, and to get the member back.
type loss struct {
	title string
	lose  func(*store.Member) error
	bring func(context.Context, *store.Member) error
	times int
	who   string        // the subject of the first row
	lasts time.Duration // for how long clients write, killAfter included
}

// failover kills the leader again and again, while a client in each of the other two members writes
// one key after the other. The end of its process breaks its connections.
func (b *bench) failover(ctx context.Context) error {
	err := b.loseLeaders(ctx, loss{"is killed (`kill -9`)", (*store.Member).Kill,
		func(ctx context.Context, m *store.Member) error { return m.Start(ctx) }, b.kills, "survivor", around})
	if err != nil {
		return err
	}
	return b.etcdFailover(ctx)
}

// silence stops the leader instead, which breaks no connection. Raft's time-out alone, and that of
// the candidate after it, may take longer than the load else would.
func (b *bench) silence(ctx context.Context) error {
	lasts := around
	if b.silent < 0 {
		lasts = 3 * around
	}
	return b.loseLeaders(ctx, loss{"is stopped (`kill -STOP`)", (*store.Member).Pause,
		func(_ context.Context, m *store.Member) error { return m.Continue() }, b.stops, "member that goes on", lasts})
}

func (b *bench) loseLeaders(ctx context.Context, l loss) error {
	var gaps, detections, elections, firsts []time.Duration
	err := b.withGroup(ctx, 3, member.Options{}, func(g group) error {
		for i := range l.times {
			k, err := g.loseLeader(ctx, l)
			if err != nil {
				return err
			}
			gaps = append(gaps, k.gap)
			if k.noticed > 0 && k.leads > 0 {
				detections, elections, firsts = append(detections, k.noticed), append(elections, k.leads-k.noticed),
					append(firsts, k.gap-k.leads)
			}
			progress("  the leader %s, %d: writes stopped for %v: noticed after %v, a leader after %v", l.title, i+1,
				k.gap, k.noticed, k.leads)
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Printf(
		"\n### Writes stop when the leader %s, 3 members\n\n| | n | min | median | p99 | max |\n|---|---|---|---|---|---|\n", l.title)
	printTimes("barque: longest time without an acknowledged write, of one client in each "+l.who, gaps)
	printTimes("of it: until one of them knew that the leader was gone", detections)
	printTimes("of it: until there was another leader", elections)
	printTimes("of it: until the first write", firsts)
	return nil
}

func printTimes(what string, times []time.Duration) {
	if len(times) == 0 {
		fmt.Printf("| %s | 0 | | | | |\n", what)
		return
	}
	slices.Sort(times)
	n := len(times)
	fmt.Printf("| %s | %d | %s | %s | %s | %s |\n", what, n, short(times[0]), short(times[n/2]), short(times[n*99/100]),
		short(times[n-1]))
}

// lost is the outcome of the loss of one leader. noticed and leads count from it.
type lost struct{ gap, noticed, leads time.Duration }

func (g group) loseLeader(ctx context.Context, l loss) (lost, error) {
	at, err := g.at(ctx, onAll)
	if err != nil {
		return lost{}, err
	}
	leader, others := at[0], at[1:]
	results, errs := make([]member.LoadResult, len(others)), make([]error, len(others))
	var writing sync.WaitGroup
	for i, m := range others {
		writing.Go(func() {
			results[i], errs[i] = m.Load(ctx,
				member.Load{Kind: member.Puts, ValueBytes: 256, Prefix: prefix, Keys: keyCount, For: l.lasts})
		})
	}
	select {
	case <-time.After(killAfter):
	case <-ctx.Done():
		writing.Wait()
		return lost{}, context.Cause(ctx)
	}
	began := time.Now()
	err = l.lose(leader)
	writing.Wait()
	var k lost
	for _, r := range results {
		k.gap = max(k.gap, r.LongestGap)
	}
	for _, m := range others {
		k.noticed = earliest(k.noticed, logged(m, noticedMessage, began))
		k.leads = earliest(k.leads, logged(m, leadsMessage, began))
	}
	restarting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return k, errors.Join(err, errors.Join(errs...), l.bring(restarting, leader), g.caughtUp(restarting, leader))
}

func earliest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// The messages that a server of the store logs when it campaigns in place of its leader, and when
// it leads.
const (
	noticedMessage = "this server campaigns"
	leadsMessage   = "this server leads"
)

// logged returns how long after a moment the member logged the message first; 0 when it did not.
func logged(m *store.Member, message string, since time.Time) time.Duration {
	f, err := os.Open(m.LogFile())
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		stamp, rest, _ := strings.Cut(strings.TrimPrefix(lines.Text(), "time="), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		// The log has milliseconds.
		if err == nil && strings.Contains(rest, message) && !at.Before(since.Truncate(time.Millisecond)) {
			return max(at.Sub(since), 1)
		}
	}
	return 0
}

// caughtUp waits until the member has applied the others' entries.
func (g group) caughtUp(ctx context.Context, m *store.Member) error {
	var want uint64
	for _, other := range g.Members() {
		if status, _, err := other.Status(ctx); err == nil {
			want = max(want, status.CommitIndex)
		}
	}
	for {
		status, _, err := m.Status(ctx)
		if err == nil && status.AppliedIndex >= want && status.LeaderID != "" {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}
