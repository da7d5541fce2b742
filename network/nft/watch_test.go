package nft

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
)

// TestWatchTellsOthersChangesFromOwn changes a table in every way, as its owner and as somebody else.
func TestWatchTellsOthersChangesFromOwn(t *testing.T) {
	if !apart.Run(t, apart.Network, await.Hang, "the watch over nftables") {
		return
	}
	w, stranger := new(Writer), new(Writer)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changed := make(chan string, 1000)
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		w.Watch(ctx, slog.New(slog.NewTextHandler(os.Stderr, nil)), []string{"ours"}, func(table string) { changed <- table })
	}()
	set := func(tx *Tx) *nftables.Set {
		return &nftables.Set{Table: tx.Table, Name: "s", KeyType: nftables.TypeIPAddr}
	}
	do := func(by *Writer, table string, change func(*Tx)) {
		t.Helper()
		tx, err := by.Begin(table)
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
	do(w, "ours", whole)
	do(stranger, "theirs", whole)
	// heard waits for one report at least. A first one shows that the watch stands.
	heard := func(what string) {
		t.Helper()
		if table := await.Value(t, "report of "+what, changed); table != "ours" {
			t.Errorf("%s: told of %q", what, table)
		}
	}
	await.True(t, "the watch stands", func() bool {
		do(stranger, "ours", func(tx *Tx) { tx.Rule(tx.Chain("c"), Verdict(expr.VerdictAccept, "")) }) // a change each time
		select {
		case <-changed:
			return true
		default:
			return false
		}
	})
	drain := func() {
		do(stranger, "ours", func(tx *Tx) { tx.AddChain(tx.Chain("probe")) }) // the last one before the mark
		heard("a mark")
		for len(changed) > 0 {
			<-changed
		}
	}
	for name, change := range map[string]func(*Tx){
		"a rule":     func(tx *Tx) { tx.Rule(tx.Chain("c"), Verdict(expr.VerdictAccept, "")) },
		"an element": func(tx *Tx) { tx.AddElements(set(tx), element) },
		"a chain":    func(tx *Tx) { tx.AddChain(tx.Chain("another")) },
		"the table":  func(tx *Tx) { tx.DelTable(tx.Table) },
	} {
		do(w, "ours", whole)
		drain()
		do(stranger, "ours", change)
		heard("a change of " + name)
	}
	do(w, "ours", whole)
	drain()
	do(w, "ours", func(tx *Tx) { tx.AddElements(set(tx), element) })
	do(w, "ours", whole)
	do(stranger, "theirs", func(tx *Tx) { tx.DelTable(tx.Table) })
	for _, mark := range []string{"one", "two"} { // the kernel tells in order
		do(stranger, "ours", func(tx *Tx) { tx.AddChain(tx.Chain(mark)) })
		heard("mark " + mark)
	}
	if n := len(changed); n > 0 {
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
	heard("a flush of the ruleset")
	if there, err := w.Tables(); err != nil || slices.Contains(there, "ours") {
		t.Errorf("tables: %v, %v", there, err)
	}
	cancel()
	<-ended
}
