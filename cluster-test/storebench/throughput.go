package main

import (
	"context"
	"fmt"
	"os"

	"github.com/barque/barque/cluster-test/store/member"
)

// repeat puts a load on a subject several times.
func (b *bench) repeat(ctx context.Context, s subject, name string, l load, where place) (series, error) {
	l.length = b.length
	var row series
	for range b.repeats {
		o, err := s.load(ctx, l, where)
		if err != nil {
			return row, err
		}
		row.add(o)
		progress("  %s: %s, %v, %s: %.0f/s, p50 %v, p99 %v, %.0f µs of CPU each, failed %d %s", name, l.kind, l, where,
			o.perSecond(), o.P50, o.P99, cpuEach(o), o.Errors, o.Error)
	}
	return row, nil
}

// compare measures the cases on Barque's store and, if there is one, on etcd.
func (b *bench) compare(ctx context.Context, t *table, ours group, theirs *etcd, cases []testCase) error {
	for _, c := range cases {
		row := tableRow{what: fmt.Sprintf("%v, %s", c.load, c.where)}
		var err error
		if row.barque, err = b.repeat(ctx, ours, "barque", c.load, c.where); err != nil {
			return err
		}
		if theirs != nil {
			s, err := b.repeat(ctx, theirs, "etcd", c.load, c.where)
			if err != nil {
				return err
			}
			row.etcd = &s
		}
		t.rows = append(t.rows, row)
	}
	t.print(os.Stdout)
	return nil
}

type testCase struct {
	load  load
	where place
}

func putCases(members int) []testCase {
	var cases []testCase
	for _, clients := range []int{1, 64, 1000} {
		for _, bytes := range []int{256, 1024} {
			for _, where := range []place{onLeader, onAll} {
				if where == onLeader || members > 1 && clients > 1 {
					cases = append(cases, testCase{load{kind: member.Puts, clients: clients, bytes: bytes}, where})
				}
			}
		}
	}
	return cases
}

func (b *bench) puts(ctx context.Context) error {
	for _, size := range []int{3, 1} {
		t := table{title: fmt.Sprintf("Puts, %d members", size)}
		if size == 1 {
			t.title = "Puts, 1 member"
		}
		err := b.withBoth(ctx, size, func(ours group, theirs *etcd) error {
			return b.compare(ctx, &t, ours, theirs, putCases(size))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) reads(ctx context.Context) error {
	return b.withBoth(ctx, 3, func(ours group, theirs *etcd) error {
		if err := fillBoth(ctx, ours, theirs); err != nil {
			return err
		}
		for _, kind := range []struct {
			kind    member.LoadKind
			title   string
			clients []int
		}{
			{member.Reads, "Linearizable reads of one key, 3 members", []int{1, 100}},
			{member.StaleReads, "Stale reads of one key, 3 members", []int{1, 100}},
			{member.Lists, fmt.Sprintf("Linearizable lists of %d keys, 3 members", keyCount), []int{1}},
		} {
			t, cases := table{title: kind.title}, []testCase(nil)
			for _, clients := range kind.clients {
				for _, where := range []place{onLeader, onFollower} {
					cases = append(cases, testCase{load{kind: kind.kind, clients: clients}, where})
				}
			}
			if err := b.compare(ctx, &t, ours, theirs, cases); err != nil {
				return err
			}
		}
		return nil
	})
}

// fillBoth gives each store all keys, with values of 1 KiB.
func fillBoth(ctx context.Context, ours group, theirs *etcd) error {
	at, err := ours.at(ctx, onLeader)
	if err != nil {
		return err
	}
	if err := fill(ctx, at[0], keyCount, 1024); err != nil {
		return err
	}
	if theirs != nil {
		return theirs.fill(ctx, keyCount, 1024)
	}
	return nil
}

// logStores compares the kinds of logs.
func (b *bench) logStores(ctx context.Context) error {
	fmt.Printf(
		"\n### boltdb against wal, 3 members\n\n| clients | boltdb puts/s min / median / max | p50 | p99 | wal puts/s min / median / max | p50 | p99 | ratio |\n|---|---|---|---|---|---|---|---|\n")
	cases := []testCase{
		{load{kind: member.Puts, clients: 1, bytes: 256}, onLeader},
		{load{kind: member.Puts, clients: 64, bytes: 256}, onLeader},
		{load{kind: member.Puts, clients: 1000, bytes: 1024}, onLeader},
	}
	rows := make(map[string][]series)
	for _, kind := range []string{"boltdb", "wal"} {
		err := b.withGroup(ctx, 3, member.Options{LogStore: kind}, func(g group) error {
			for _, c := range cases {
				s, err := b.repeat(ctx, g, kind, c.load, c.where)
				if err != nil {
					return err
				}
				rows[kind] = append(rows[kind], s)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for i, c := range cases {
		bolt, wal := rows["boltdb"][i], rows["wal"][i]
		fmt.Printf("| %v, %s | %s | %s | %.2f |\n", c.load, c.where, bolt.cells(), wal.cells(),
			median(wal.ops)/median(bolt.ops))
	}
	return nil
}
