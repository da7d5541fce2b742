package nft

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
)

// TestWatchTellsOthersChangesFromOwn changes a table in every way, as its owner and as somebody
// else.
func TestWatchTellsOthersChangesFromOwn(t *testing.T) {
	if !apart.Run(t, apart.Network, await.Hang, "the watch over nftables") {
		return
	}
	// A table of the same name and the other family is another one.
	named := func(table string) Name {
		if table == "probe" {
			return Name{IPv6, table}
		}
		return Name{IPv4, table}
	}
	// The kernel gives a process's own number to one of its sockets at a time. Without this one
	// both writers could have it, one after the other; other programs never have it.
	first, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	w, other := new(Writer), new(Writer)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changed := make(chan string, 1000)
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		w.Watch(ctx, slog.New(slog.NewTextHandler(os.Stderr, nil)),
			[]Name{named("ours"), named("probe"), named("mark")}, func(table Name) { changed <- table.Table })
	}()
	set := func(tx *Tx) *nftables.Set {
		return &nftables.Set{Table: tx.Table, Name: "s", KeyType: tx.Family.TypeAddr()}
	}
	do := func(by *Writer, table string, change func(*Tx)) {
		t.Helper()
		tx, err := by.Begin(named(table))
		if err != nil {
			t.Fatal(err)
		}
		change(tx)
		if err := tx.Commit("test"); err != nil {
			t.Fatal(err)
		}
	}
	whole := func(tx *Tx) {
		tx.Clear()
		tx.AddChain(tx.Chain("c"))
		tx.Rule(tx.Chain("c"), Verdict(expr.VerdictAccept, ""))
		tx.MakeSet(set(tx))
	}
	element := []nftables.SetElement{{Key: []byte{192, 0, 2, 1}}}
	for _, table := range []string{"ours", "probe", "mark"} {
		do(w, table, whole)
	}
	do(other, "theirs", whole)
	rule := func(tx *Tx) { tx.Rule(tx.Chain("c"), Verdict(expr.VerdictAccept, "")) }
	await.True(t, "the watch stands", func() bool {
		do(other, "probe", rule)
		select {
		case <-changed:
			return true
		default:
			return false
		}
	})
	// told returns how often "ours" was reported until now. The kernel tells in order: a change of
	// "mark" comes after all that was done before it.
	told := func() (n int) {
		t.Helper()
		do(other, "mark", rule)
		for {
			switch table := await.Value(t, "report of the mark", changed); table {
			case "mark":
				return n
			case "ours":
				n++
			case "probe": // one of the first ones
			default:
				t.Errorf("told of %q", table)
			}
		}
	}
	for name, change := range map[string]func(*Tx){
		"a rule":     rule,
		"an element": func(tx *Tx) { tx.AddElements(set(tx), element) },
		"a chain":    func(tx *Tx) { tx.AddChain(tx.Chain("another")) },
		"the table":  func(tx *Tx) { tx.DelTable(tx.Table) },
	} {
		do(w, "ours", whole)
		if n := told(); n != 0 {
			t.Errorf("%d reports of own changes", n)
		}
		do(other, "ours", change)
		if told() == 0 {
			t.Errorf("no report of a change of %s", name)
		}
	}
	do(w, "ours", whole)
	do(w, "ours", func(tx *Tx) { tx.AddElements(set(tx), element) })
	do(other, "theirs", func(tx *Tx) { tx.DelTable(tx.Table) })
	if n := told(); n != 0 {
		t.Errorf("%d reports of own changes, or of another table", n)
	}
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	conn.FlushRuleset()
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	flushed := map[string]bool{}
	for !flushed["ours"] {
		flushed[await.Value(t, "report of a flush of the ruleset", changed)] = true
	}
	if there, err := w.Tables(); err != nil || slices.Contains(there, named("ours")) {
		t.Errorf("tables: %v, %v", there, err)
	}
	cancel()
	<-ended
}
