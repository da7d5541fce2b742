// Package nft writes Barque's nftables tables. Each table has one owner, which defines its contents
// by transactions: package proxy for services and host ports, package policy for network policies.
//
// A transaction takes effect as a whole or not at all; no packet meets half of one. Watch notifies
// an owner when another program has changed or deleted its table, such as a firewall manager that
// flushes the whole ruleset.
//
// Everything happens in the network namespace of the calling thread. The package does not depend on
// services, pods or policies.
package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

const (
	// A transaction is one message to the kernel, which acknowledges each of its parts: 10,000
	// services take some 20 MiB, and 70 MiB for the answers. It is a bound; unused memory is not
	// taken.
	socketBuffer = 128 << 20
	// a kernel that does not answer must not hang a node; 10,000 services take two on a busy one
	answerLimit = 5 * time.Minute
	// Chunk is the number of elements in one attribute, which is limited to 64 KiB.
	Chunk = 500
)

// ErrGone is returned if a change refers to an object that is no longer in the kernel: another
// program has deleted the table, or a part of it.
var ErrGone = errors.New("the nftables table is gone")

// Name names a table.
type Name struct {
	Family Family
	Table  string
}

func (n Name) String() string { return n.Table + " (" + n.Family.String() + ")" }

// Writer writes tables. It remembers its own sockets, so that Watch can distinguish its own changes
// from those of others.
type Writer struct {
	mu    sync.Mutex
	ports []uint32 // of the netlink sockets used last, newest last
}

// portsKept is the number of sockets whose notifications may still be on their way.
const portsKept = 256

// connect returns a connection that opens its socket when it is used.
func (w *Writer) connect() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(w.remember(c), c.SetWriteBuffer(socketBuffer), c.SetReadBuffer(socketBuffer),
			c.SetDeadline(time.Now().Add(answerLimit)))
	}))
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return conn, nil
}

// remember records the socket's port, which the kernel reports as the author of a change.
func (w *Writer) remember(c *netlink.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		var addr unix.Sockaddr
		if addr, failed = unix.Getsockname(int(fd)); failed != nil {
			return
		}
		if own, ok := addr.(*unix.SockaddrNetlink); ok {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ports = append(w.ports, own.Pid)
			w.ports = w.ports[max(0, len(w.ports)-portsKept):]
		}
	})
	return errors.Join(err, failed)
}

// own tells whether a change came from this writer.
func (w *Writer) own(port uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.ports, port)
}

// Tables returns the names of all tables of IPv4 and IPv6.
func (w *Writer) Tables() ([]Name, error) {
	conn, err := w.connect()
	if err != nil {
		return nil, err
	}
	var names []Name
	for _, family := range []Family{IPv4, IPv6} {
		tables, err := conn.ListTablesOfFamily(family.table())
		if err != nil {
			return nil, fmt.Errorf("nftables: list tables: %w", err)
		}
		for _, table := range tables {
			names = append(names, Name{family, table.Name})
		}
	}
	return names, nil
}

// Purge removes a table and everything in it. A missing table is no error.
func (w *Writer) Purge(table Name) error {
	tx, err := w.Begin(table)
	if err != nil {
		return err
	}
	tx.AddTable(tx.Table)
	tx.DelTable(tx.Table)
	err = tx.Commit("remove the table " + table.String())
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a kernel without tables of the family has none
	}
	return err
}

// Tx gathers changes of one table and sends them at once.
type Tx struct {
	*nftables.Conn
	Table  *nftables.Table
	Family Family
	err    error // the first thing that could not even be sent
}

// Begin starts a transaction.
func (w *Writer) Begin(table Name) (*Tx, error) {
	conn, err := w.connect()
	if err != nil {
		return nil, err
	}
	return &Tx{Conn: conn, Table: &nftables.Table{Name: table.Table, Family: table.Family.table()},
		Family: table.Family}, nil
}

// Clear makes the transaction begin with an empty table, whatever its contents.
func (tx *Tx) Clear() {
	// Add, delete, add: deleting a table that does not exist would be an error.
	tx.AddTable(tx.Table)
	tx.DelTable(tx.Table)
	tx.AddTable(tx.Table)
}

// Fail makes Commit return err.
func (tx *Tx) Fail(err error) {
	if tx.err == nil {
		tx.err = err
	}
}

// Commit sends everything. An error means that nothing has changed, or wraps ErrGone.
func (tx *Tx) Commit(what string) error {
	err := tx.err
	if err == nil {
		err = tx.Flush()
	}
	if errors.Is(err, unix.ENOENT) {
		err = errors.Join(ErrGone, err)
	}
	if err != nil {
		return fmt.Errorf("nftables: %s: %w", what, err)
	}
	return nil
}

// Chain names a chain of the table.
func (tx *Tx) Chain(name string) *nftables.Chain {
	return &nftables.Chain{Name: name, Table: tx.Table}
}

// Rule appends a rule made of steps to a chain.
func (tx *Tx) Rule(chain *nftables.Chain, steps ...[]expr.Any) {
	tx.AddRule(&nftables.Rule{Table: tx.Table, Chain: chain, Exprs: slices.Concat(steps...)})
}

// Hook adds a base chain.
func (tx *Tx) Hook(
	name string, kind nftables.ChainType, at *nftables.ChainHook, priority *nftables.ChainPriority,
) *nftables.Chain {
	return tx.AddChain(&nftables.Chain{Name: name, Table: tx.Table, Type: kind, Hooknum: at, Priority: priority})
}

// MakeSet adds an empty set or map.
func (tx *Tx) MakeSet(set *nftables.Set) {
	if err := tx.AddSet(set, nil); err != nil {
		tx.Fail(fmt.Errorf("set %s: %w", set.Name, err))
	}
}

// AddElements adds elements to a set or map.
func (tx *Tx) AddElements(set *nftables.Set, elements []nftables.SetElement) {
	for chunk := range slices.Chunk(elements, Chunk) {
		if err := tx.SetAddElements(set, chunk); err != nil {
			tx.Fail(fmt.Errorf("set %s: %w", set.Name, err))
		}
	}
}

// DeleteElements deletes elements of a set or map.
func (tx *Tx) DeleteElements(set *nftables.Set, elements []nftables.SetElement) {
	for chunk := range slices.Chunk(elements, Chunk) {
		if err := tx.SetDeleteElements(set, chunk); err != nil {
			tx.Fail(fmt.Errorf("set %s: %w", set.Name, err))
		}
	}
}

// ProtoPortKey is a key of TypeProtoPort.
func ProtoPortKey(protocol corev1.Protocol, port uint16) []byte {
	key := append([]byte{ProtocolNumber(protocol), 0, 0, 0}, binaryutil.BigEndian.PutUint16(port)...)
	return append(key, 0, 0)
}

// AddrProtPortKey is a key of a Family's TypeAddrProtPort.
func AddrProtPortKey(addr netip.Addr, protocol corev1.Protocol, port uint16) []byte {
	return append(addr.AsSlice(), ProtoPortKey(protocol, port)...)
}

// AddrPortKey is a key or value of a Family's TypeAddrPort.
func AddrPortKey(addr netip.Addr, port uint16) []byte {
	key := append(addr.AsSlice(), binaryutil.BigEndian.PutUint16(port)...)
	return append(key, 0, 0)
}

// PairKey is a key of a Family's TypePair: an address twice.
func PairKey(addr netip.Addr) []byte { return append(addr.AsSlice(), addr.AsSlice()...) }

// ProtocolNumber is the protocol's number in IP headers.
func ProtocolNumber(protocol corev1.Protocol) byte {
	switch protocol {
	case corev1.ProtocolUDP:
		return unix.IPPROTO_UDP
	case corev1.ProtocolSCTP:
		return unix.IPPROTO_SCTP
	default:
		return unix.IPPROTO_TCP
	}
}
