package command

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/barque/barque/raftstore/kv"
)

func sample() *Command {
	return &Command{Now: 1_700_000_000_000, StateBytes: 2 << 30, Requests: []Request{
		{ID: ID{Origin: 7, Seq: 3}, Done: 2, Kind: KindTxn, Txn: kv.Txn{
			Term:    5,
			Require: []kv.Precondition{{Key: "/a", ModRevision: 9}, {Key: "/b"}},
			Ops: []kv.Op{
				{Kind: kv.Put, Key: "/a", Value: []byte("value"), TTL: time.Hour},
				{Kind: kv.Delete, Key: "/b", Value: []byte{}},
			},
		}},
		{Kind: KindCompact, Revision: 1 << 40},
		{Kind: KindTxn},
		{ID: ID{Origin: 7, Seq: 4}, Kind: KindRestore, Restore: Restore{
			Step: RestoreChunk, ID: 1 << 63, Term: 5, Seq: 2, Items: 3, Sum: 4, AtLeast: 1 << 50, Data: []byte("items"),
		}},
		{Kind: KindExpire, Expire: Expire{Term: 3, Due: 1_700_000_000_000, Most: 256}},
	}}
}

func TestRoundTrip(t *testing.T) {
	for _, c := range []*Command{sample(), {Now: -1}} {
		got, err := Decode(Encode(c))
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("Decode(Encode(%+v)) = %+v, %v", c, got, err)
		}
	}
	for _, o := range []Outcome{
		{Code: Conflict, Revision: 4, Key: "/a", Current: &kv.Item{
			Key: "/a", Value: []byte("v"), CreateRevision: 1, ModRevision: 2, Expires: 3,
		}},
		{Code: NoSpace, Revision: 4, Full: kv.NoSpaceError{Size: 1 << 31, Needed: 5, Limit: 1 << 30}},
	} {
		if got, err := DecodeOutcome(AppendOutcome(nil, &o)); err != nil || !reflect.DeepEqual(got, o) {
			t.Errorf("outcome: %+v, %v", got, err)
		}
	}
}

// TestReleasedLayout pins the bytes of the version. They must decode for ever.
func TestReleasedLayout(t *testing.T) {
	body := "\x02\x05\x02" + // time 1, limit 5, two requests
		"\x01\x07\x03\x02" + // transaction, origin 7, number 3, done below 2
		"\x05\x01\x02/a\x09" + // term 5, requires /a at 9
		"\x01\x01\x02/a\x01v\xe8\x07" + // put /a = v, for 1 s
		"\x03\x00\x00\x00\x04\x0a\x09" // expiry, without identity: term 4, due at 5, 9 items at most
	data := append([]byte{Version, 0, 0, 0, 0}, body...)
	binary.LittleEndian.PutUint32(data[1:], crc32.Checksum([]byte(body), castagnoli))
	want := &Command{Now: 1, StateBytes: 5, Requests: []Request{{
		ID: ID{7, 3}, Done: 2, Kind: KindTxn, Txn: kv.Txn{
			Term: 5, Require: []kv.Precondition{{Key: "/a", ModRevision: 9}},
			Ops: []kv.Op{{Kind: kv.Put, Key: "/a", Value: []byte("v"), TTL: time.Second}},
		},
	}, {Kind: KindExpire, Expire: Expire{Term: 4, Due: 5, Most: 9}}}}
	if got, err := Decode(data); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestUnknownAndDamaged(t *testing.T) {
	newer := Encode(sample())
	newer[0]++
	if _, err := Decode(newer); !errors.Is(err, ErrVersion) {
		t.Errorf("a newer version: %v", err)
	}
	if _, err := Decode(Encode(&Command{Requests: []Request{{Kind: 77}}})); !errors.Is(err, ErrVersion) {
		t.Errorf("an unknown kind: %v", err)
	}
	if _, err := Decode(
		Encode(&Command{Requests: []Request{{Kind: KindRestore, Restore: Restore{Step: 9}}}})); !errors.Is(err,
		ErrVersion) {
		t.Errorf("an unknown step: %v", err)
	}
	good := Encode(sample())
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x40
		if _, err := Decode(bad); err == nil {
			t.Errorf("a flipped bit in byte %d was taken", i)
		}
		if _, err := Decode(good[:i]); err == nil {
			t.Errorf("the first %d bytes were taken", i)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(sample())[headLen:])
	f.Add([]byte{2, 0, 1, 1, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, body []byte) {
		data := append([]byte{Version, 0, 0, 0, 0}, body...)
		binary.LittleEndian.PutUint32(data[1:], crc32.Checksum(body, castagnoli))
		c, err := Decode(data)
		if err != nil {
			return
		}
		again, err := Decode(Encode(c))
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%+v became %+v, %v", c, again, err)
		}
	})
}

// TestShortTTL: a time to live below the unit of an entry is not none at all.
func TestShortTTL(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{
		0: 0, 1: time.Millisecond, 2500 * time.Microsecond: 2 * time.Millisecond,
		math.MaxInt64: math.MaxInt64 / time.Millisecond * time.Millisecond,
	} {
		c, err := Decode(
			Encode(
				&Command{
					Requests: []Request{
						{Kind: KindTxn, Txn: kv.Txn{Ops: []kv.Op{{Kind: kv.Put, Key: "k", TTL: given}}}}}}))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Requests[0].Txn.Ops[0].TTL; got != want {
			t.Errorf("%v became %v", given, got)
		}
	}
}
