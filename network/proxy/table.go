package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tableName is the one nftables table (family ip) that belongs to Barque.
const tableName = "barque"

const (
	socketBuffer = 16 << 20         // a transaction is one message to the kernel
	answerLimit  = 10 * time.Second // a kernel that does not answer must not hang a node
	elementChunk = 500              // elements in one attribute, which is limited to 64 KiB
)

// Names of what is in the table besides a chain and maybe an affinity map for
// each Chain. Those have a slash in their names, these have not.
const (
	chainServices = "services"
	chainRefuse   = "refuse"
	chainReject   = "reject"
	mapAddrs      = "frontends"      // address . protocol . port → chain
	mapPorts      = "node-frontends" // protocol . port → chain
	mapNoAddrs    = "refused"
	mapNoPorts    = "node-refused"
	setHairpins   = "hairpins" // address . address
)

// table writes Rules into the kernel, in one transaction each time: all of it
// takes effect at one moment, or nothing does and an error says so. (Affinities
// to backends that are gone are forgotten in a second one.) All of it happens in
// the network namespace of the calling thread.
type table struct {
	podNetwork     netip.Prefix
	serviceNetwork netip.Prefix
	local          []netip.Addr // where the node itself answers
}

var errTableGone = errors.New("the nftables table is gone")

// transaction gathers changes and sends them at once.
type transaction struct {
	*nftables.Conn
	table *nftables.Table
	err   error // the first thing that could not even be sent
}

func (t table) begin() (*transaction, error) {
	conn, err := connect()
	if err != nil {
		return nil, err
	}
	return &transaction{Conn: conn, table: &nftables.Table{Name: tableName, Family: nftables.TableFamilyIPv4}}, nil
}

func connect() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(socketBuffer), c.SetReadBuffer(socketBuffer),
			c.SetDeadline(time.Now().Add(answerLimit)))
	}))
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return conn, nil
}

func (tx *transaction) fail(err error) {
	if tx.err == nil {
		tx.err = err
	}
}

func (tx *transaction) commit(what string) error {
	err := tx.err
	if err == nil {
		err = tx.Flush()
	}
	if errors.Is(err, unix.ENOENT) {
		err = errors.Join(errTableGone, err)
	}
	if err != nil {
		return fmt.Errorf("nftables: %s: %w", what, err)
	}
	return nil
}

// replace makes the whole table anew. Connections that exist already keep their
// backends: those are in the kernel's connection tracking, not here.
func (t table) replace(rules Rules) error {
	tx, err := t.begin()
	if err != nil {
		return err
	}
	// Add, delete, add: deleting a table that does not exist would be an error.
	tx.AddTable(tx.table)
	tx.DelTable(tx.table)
	tx.AddTable(tx.table)
	tx.skeleton(t)
	tx.apply(diff(emptyRules(), rules), t)
	return tx.commit("write the service rules")
}

// change brings the table from one state to the next.
func (t table) change(delta Delta) error {
	tx, err := t.begin()
	if err != nil {
		return err
	}
	tx.apply(delta, t)
	if err := tx.commit("change the service rules"); err != nil {
		return err
	}
	return t.forget(delta.SetChains)
}

// present tells whether the table is there: `nft flush ruleset` takes it away.
func (t table) present() (bool, error) {
	conn, err := connect()
	if err != nil {
		return false, err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return false, fmt.Errorf("nftables: list tables: %w", err)
	}
	for _, one := range tables {
		if one.Name == tableName {
			return true, nil
		}
	}
	return false, nil
}

// Purge removes the table and with it every service rule. It succeeds where
// there is none.
func Purge() error {
	tx, err := table{}.begin()
	if err != nil {
		return err
	}
	tx.AddTable(tx.table)
	tx.DelTable(tx.table)
	return tx.commit("remove the service rules")
}

// apply adds everything that others refer to before it is referred to, and
// removes it after.
func (tx *transaction) apply(d Delta, t table) {
	for name := range d.AddChains {
		tx.AddChain(&nftables.Chain{Name: name, Table: tx.table})
	}
	// A chain's old rules go before the affinity map that they use, and its new
	// ones come after the map that they use.
	for name := range d.SetChains {
		tx.FlushChain(&nftables.Chain{Name: name, Table: tx.table})
	}
	tx.changeFrontends(d)
	for _, name := range d.DelChains {
		tx.FlushChain(&nftables.Chain{Name: name, Table: tx.table})
	}
	for _, name := range d.DelAffinity {
		tx.DelSet(tx.affinityMap(name, 0))
	}
	for name, timeout := range d.AddAffinity {
		tx.addSet(tx.affinityMap(name, timeout))
	}
	for name, chain := range d.AddChains {
		tx.fill(name, chain, t)
	}
	for name, chain := range d.SetChains {
		tx.fill(name, chain, t)
	}
	for _, name := range d.DelChains {
		tx.DelChain(&nftables.Chain{Name: name, Table: tx.table})
	}
}

// changeFrontends changes the elements of the maps.
func (tx *transaction) changeFrontends(d Delta) {
	var delAddrs, delPorts, delNoAddrs, delNoPorts, delHairpins []nftables.SetElement
	var addAddrs, addPorts, addNoAddrs, addNoPorts, addHairpins []nftables.SetElement
	split := func(frontend Frontend, verdict *expr.Verdict, addrs, ports *[]nftables.SetElement) {
		element := nftables.SetElement{Key: frontendKey(frontend), VerdictData: verdict}
		if frontend.Addr.IsValid() {
			*addrs = append(*addrs, element)
		} else {
			*ports = append(*ports, element)
		}
	}
	for _, frontend := range d.DelFrontends {
		split(frontend, nil, &delAddrs, &delPorts)
	}
	for _, frontend := range d.DelRefused {
		split(frontend, nil, &delNoAddrs, &delNoPorts)
	}
	for frontend, chain := range d.AddFrontends {
		split(frontend, &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}, &addAddrs, &addPorts)
	}
	for frontend, refusal := range d.AddRefused {
		verdict := &expr.Verdict{Kind: expr.VerdictDrop}
		if refusal == Reject {
			verdict = &expr.Verdict{Kind: expr.VerdictGoto, Chain: chainReject}
		}
		split(frontend, verdict, &addNoAddrs, &addNoPorts)
	}
	for _, addr := range d.DelHairpins {
		delHairpins = append(delHairpins, hairpinElement(addr))
	}
	for _, addr := range d.AddHairpins {
		addHairpins = append(addHairpins, hairpinElement(addr))
	}
	tx.deleteElements(tx.verdictMap(mapAddrs), delAddrs)
	tx.deleteElements(tx.verdictMap(mapPorts), delPorts)
	tx.deleteElements(tx.verdictMap(mapNoAddrs), delNoAddrs)
	tx.deleteElements(tx.verdictMap(mapNoPorts), delNoPorts)
	tx.deleteElements(tx.hairpins(), delHairpins)
	tx.addElements(tx.verdictMap(mapAddrs), addAddrs)
	tx.addElements(tx.verdictMap(mapPorts), addPorts)
	tx.addElements(tx.verdictMap(mapNoAddrs), addNoAddrs)
	tx.addElements(tx.verdictMap(mapNoPorts), addNoPorts)
	tx.addElements(tx.hairpins(), addHairpins)
}

func (tx *transaction) addSet(set *nftables.Set) {
	if err := tx.AddSet(set, nil); err != nil {
		tx.fail(fmt.Errorf("set %s: %w", set.Name, err))
	}
}

func (tx *transaction) addElements(set *nftables.Set, elements []nftables.SetElement) {
	for chunk := range chunks(elements) {
		if err := tx.SetAddElements(set, chunk); err != nil {
			tx.fail(fmt.Errorf("set %s: %w", set.Name, err))
		}
	}
}

func (tx *transaction) deleteElements(set *nftables.Set, elements []nftables.SetElement) {
	for chunk := range chunks(elements) {
		if err := tx.SetDeleteElements(set, chunk); err != nil {
			tx.fail(fmt.Errorf("set %s: %w", set.Name, err))
		}
	}
}

// The sets. In a concatenation every part is padded to four bytes.

var (
	typeAddrKey = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	typePortKey = nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)
	typePair    = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)
	typeBackend = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
)

func (tx *transaction) verdictMap(name string) *nftables.Set {
	key := typeAddrKey
	if name == mapPorts || name == mapNoPorts {
		key = typePortKey
	}
	return &nftables.Set{
		Table: tx.table, Name: name, IsMap: true, Concatenation: true, KeyType: key, DataType: nftables.TypeVerdict,
	}
}

func (tx *transaction) hairpins() *nftables.Set {
	return &nftables.Set{Table: tx.table, Name: setHairpins, Concatenation: true, KeyType: typePair}
}

// affinityMap remembers which backend a client's address was led to.
func (tx *transaction) affinityMap(chain string, timeout time.Duration) *nftables.Set {
	return &nftables.Set{
		Table: tx.table, Name: affinityName(chain), IsMap: true, Dynamic: true, HasTimeout: true, Timeout: timeout,
		KeyType: nftables.TypeIPAddr, DataType: typeBackend, Size: 65535,
	}
}

func affinityName(chain string) string { return "affinity/" + chain }

func frontendKey(f Frontend) []byte {
	var key []byte
	if f.Addr.IsValid() {
		key = append(key, f.Addr.AsSlice()...)
	}
	key = append(key, protocolNumber(f.Protocol), 0, 0, 0)
	key = append(key, binaryutil.BigEndian.PutUint16(f.Port)...)
	return append(key, 0, 0)
}

func backendValue(b Backend) []byte {
	value := append(b.Addr.AsSlice(), binaryutil.BigEndian.PutUint16(b.Port)...)
	return append(value, 0, 0)
}

func hairpinElement(addr netip.Addr) nftables.SetElement {
	return nftables.SetElement{Key: append(addr.AsSlice(), addr.AsSlice()...)}
}

// Try writes a table with one rule of every kind, and removes it again: its
// error is what the kernel cannot do. For a network namespace of its own.
func Try() error {
	backends := []Backend{
		{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80}, {Addr: netip.MustParseAddr("192.0.2.2"), Port: 80},
	}
	rules := emptyRules()
	rules.Frontends[Frontend{Addr: netip.MustParseAddr("192.0.2.3"), Port: 80}] = "try/all"
	rules.Refused[Frontend{Port: 81}] = Reject
	rules.Chains["try/all"] = Chain{HideForeign: true, Backends: backends}
	rules.Chains["try/local"] = Chain{Cluster: "try/all", Affinity: time.Minute, Backends: backends}
	rules.Hairpins[backends[0].Addr] = struct{}{}
	t := table{podNetwork: netip.MustParsePrefix("192.0.2.0/24"), serviceNetwork: netip.MustParsePrefix("198.51.100.0/24")}
	if err := t.replace(rules); err != nil {
		return err
	}
	return Purge()
}
