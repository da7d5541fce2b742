package raftstore

import (
	"fmt"
	"strings"

	"github.com/barque/barque/raftstore/kv"
)

// check refuses a transaction that is too large, or reserved for the store.
func (l Limits) check(txn *Txn) error {
	for i := range txn.Ops {
		if key := txn.Ops[i].Key; strings.HasPrefix(key, kv.ReservedPrefix) {
			return fmt.Errorf("%w: the keys below %q are the store's own", ErrInvalid, kv.ReservedPrefix)
		}
	}
	return l.checkForwarded(txn)
}

// checkForwarded refuses a transaction that is too large or malformed. A forwarded transaction may
// be the store's own.
func (l Limits) checkForwarded(txn *Txn) error {
	if n := len(txn.Require) + len(txn.Ops); n > l.TxnOps {
		return fmt.Errorf("%w: %d operations and preconditions in one transaction, the limit is %d", ErrTooLarge, n,
			l.TxnOps)
	}
	total := 0
	for i := range txn.Require {
		if err := l.checkKey(txn.Require[i].Key); err != nil {
			return err
		}
		total += len(txn.Require[i].Key)
	}
	for i := range txn.Ops {
		op := &txn.Ops[i]
		if err := l.checkOp(op); err != nil {
			return err
		}
		total += len(op.Key) + len(op.Value)
	}
	if total > l.TxnBytes {
		return fmt.Errorf("%w: transaction of %d bytes, the limit is %d", ErrTooLarge, total, l.TxnBytes)
	}
	return checkDistinct(txn.Ops)
}

func (l Limits) checkKey(key string) error {
	if key == "" {
		return fmt.Errorf("%w: empty key", ErrInvalid)
	}
	if len(key) > l.KeyBytes {
		return fmt.Errorf("%w: key of %d bytes, the limit is %d", ErrTooLarge, len(key), l.KeyBytes)
	}
	return nil
}

func (l Limits) checkOp(op *Op) error {
	if err := l.checkKey(op.Key); err != nil {
		return err
	}
	switch {
	case op.Kind != kv.Put && op.Kind != kv.Delete:
		return fmt.Errorf("%w: operation of kind %d on key %q", ErrInvalid, op.Kind, op.Key)
	case op.TTL < 0:
		return fmt.Errorf("%w: time to live of %v for key %q", ErrInvalid, op.TTL, op.Key)
	case len(op.Value) > l.ValueBytes:
		return fmt.Errorf("%w: value of %d bytes for key %q, the limit is %d", ErrTooLarge, len(op.Value), op.Key,
			l.ValueBytes)
	}
	return nil
}

// checkDistinct refuses two operations on one key: one revision holds one change of a key.
func checkDistinct(ops []Op) error {
	if len(ops) < 2 {
		return nil
	}
	seen := make(map[string]struct{}, len(ops))
	for i := range ops {
		if _, twice := seen[ops[i].Key]; twice {
			return fmt.Errorf("%w: two operations on key %q", ErrInvalid, ops[i].Key)
		}
		seen[ops[i].Key] = struct{}{}
	}
	return nil
}
