package disk

import (
	"testing"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
)

// TestWhatAFullDiskTakes: requests that make room, and decisions about the group; no others.
func TestWhatAFullDiskTakes(t *testing.T) {
	txn := func(ops ...kv.Op) *command.Request {
		return &command.Request{Kind: command.KindTxn, Txn: kv.Txn{Ops: ops}}
	}
	restore := func(step command.Step) *command.Request {
		return &command.Request{Kind: command.KindRestore, Restore: command.Restore{Step: step}}
	}
	for name, test := range map[string]struct {
		request *command.Request
		taken   bool
	}{
		"put":              {txn(kv.Op{Kind: kv.Put, Key: "/a"}), false},
		"delete":           {txn(kv.Op{Kind: kv.Delete, Key: "/a"}), true},
		"delete and put":   {txn(kv.Op{Kind: kv.Delete, Key: "/a"}, kv.Op{Kind: kv.Put, Key: "/b"}), false},
		"put of the group": {txn(kv.Op{Kind: kv.Put, Key: kv.ReservedPrefix + "x"}), true},
		"compact":          {&command.Request{Kind: command.KindCompact}, true},
		"expire":           {&command.Request{Kind: command.KindExpire}, true},
		"restore begun":    {restore(command.RestoreBegin), false},
		"restore goes on":  {restore(command.RestoreChunk), false},
		"restore ends":     {restore(command.RestoreCommit), false},
		"restore dropped":  {restore(command.RestoreAbort), true},
	} {
		if needsNoRoom(test.request) != test.taken {
			t.Errorf("%s is taken: %t", name, !test.taken)
		}
	}
}
