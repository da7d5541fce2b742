// Package redirect leads packets for addresses that no interface of this machine has to programs of
// the machine: for those of the API to this server's API, while the server holds them, and for
// those of Gateways to the node's gateway.
//
// Each use owns one nftables table of each family, so it needs neither the service proxy nor a node
// that runs pods. The address is on no interface: the kernel would answer for it after this process
// had died. What the rules apply to is a set whose elements the kernel forgets after Lifetime. So a
// process that died leaves no rule behind that keeps the machine's own clients from the next
// holder.
//
// A program learns the address that its client has asked for by SO_ORIGINAL_DST.
package redirect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/edge/hold"
	"github.com/barque/barque/internal/remains"
	"github.com/barque/barque/network/nft"
)

// The names of the tables.
const (
	TableOfAPI      = "barque-api"
	TableOfGateways = "barque-gateway"
)

const (
	// Lifetime is how long the kernel redirects without a word of this process.
	Lifetime = 10 * time.Second
	// refresh is how often the rules are written again while something is redirected.
	refresh = Lifetime / 3
	// again is the pause after an error.
	again = time.Second

	setWanted = "wanted"
)

// Config of Run. All but Failed and Logger are needed.
type Config struct {
	// Table is the name of the tables. No two uses on one machine have the same.
	Table string
	// Of names the addresses in messages, such as "the API's address".
	Of string
	// Wanted returns the addresses and ports whose packets are led here, and a channel that is
	// closed when that changes.
	Wanted func() ([]netip.AddrPort, <-chan struct{})
	// To are this machine's own addresses, the first of each family counts. The port stays.
	To []netip.Addr
	// Failed is called with each error that differs from the one before of the same family.
	Failed func(error)
	Logger *slog.Logger
}

// Held makes Config.Wanted of the held ones among some addresses.
func Held(
	held func() ([]hold.Hold, <-chan struct{}), addresses []netip.Addr, port uint16,
) func() ([]netip.AddrPort, <-chan struct{}) {
	return func() (wanted []netip.AddrPort, changed <-chan struct{}) {
		holds, changed := held()
		for _, h := range holds {
			if slices.Contains(addresses, h.Addr) {
				wanted = append(wanted, netip.AddrPortFrom(h.Addr, port))
			}
		}
		return wanted, changed
	}
}

// Run keeps the rules until ctx ends. Then it removes them.
func Run(ctx context.Context, c Config) error {
	logger := c.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	writer := new(nft.Writer)
	defer func() {
		if err := Purge(c.Table); err != nil {
			logger.Warn("cannot remove rules; the kernel forgets their addresses by itself", "of", c.Of, "err", err)
		}
	}()
	written := map[nft.Family]bool{nft.IPv4: true, nft.IPv6: true} // by an earlier process, perhaps
	said := map[nft.Family]string{}                                // the last errors
	for {
		all, changed := c.Wanted()
		wait := time.Hour
		for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
			wanted := of(family, all)
			if len(wanted) == 0 && !written[family] {
				continue
			}
			if err := write(writer, family, wanted, c); err != nil {
				if wait = again; err.Error() != said[family] {
					said[family] = err.Error()
					logger.Error("cannot lead packets to this machine, and will try again", "of", c.Of, "err", err)
					if c.Failed != nil {
						c.Failed(err)
					}
				}
				continue
			}
			delete(said, family)
			if written[family] = len(wanted) > 0; written[family] {
				wait = min(wait, refresh)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

// Purge removes the tables of a name. A missing one is no error.
func Purge(table string) error {
	w := new(nft.Writer)
	return errors.Join(w.Purge(nft.Name{Family: nft.IPv4, Table: table}),
		w.Purge(nft.Name{Family: nft.IPv6, Table: table}))
}

// Remains are the tables of all uses. A process that is killed leaves them.
func Remains() []remains.Kind {
	uses := []string{TableOfAPI, TableOfGateways}
	return []remains.Kind{{Name: "nftables tables of addresses", Find: func(context.Context) ([]string, error) {
		all, err := new(nft.Writer).Tables()
		var found []string
		for _, t := range all {
			if slices.Contains(uses, t.Table) {
				found = append(found, t.String())
			}
		}
		return found, err
	}, Remove: func(context.Context) error { return errors.Join(Purge(TableOfAPI), Purge(TableOfGateways)) }}}
}

// of returns those of one family.
func of(family nft.Family, all []netip.AddrPort) (out []netip.AddrPort) {
	for _, a := range all {
		if family.Has(a.Addr()) {
			out = append(out, a)
		}
	}
	return out
}

// write writes one family's table, in one transaction. Existing connections keep their translation,
// which is in the connection tracking.
func write(w *nft.Writer, family nft.Family, wanted []netip.AddrPort, c Config) error {
	name := nft.Name{Family: family, Table: c.Table}
	if len(wanted) == 0 {
		return w.Purge(name)
	}
	to := slices.IndexFunc(c.To, family.Has)
	if to < 0 {
		return errors.Join(w.Purge(name), fmt.Errorf(
			"%s: this machine has no address of the family %s to lead packets to; give it one with --node-ip",
			wanted[0].Addr(), family))
	}
	tx, err := w.Begin(name)
	if err != nil {
		return err
	}
	tx.Clear()
	set := &nftables.Set{Table: tx.Table, Name: setWanted, KeyType: family.TypeAddrPort(), Concatenation: true,
		HasTimeout: true, Timeout: Lifetime}
	tx.MakeSet(set)
	var elements []nftables.SetElement
	for _, a := range wanted {
		elements = append(elements, nftables.SetElement{Key: nft.AddrPortKey(a.Addr(), a.Port())})
	}
	tx.AddElements(set, elements)
	// The machine's own clients pass output, and all others prerouting. The service proxy's chains
	// come after, and know nothing of these addresses.
	before := nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest - 1)
	for name, at := range map[string]*nftables.ChainHook{"prerouting": nftables.ChainHookPrerouting,
		"output": nftables.ChainHookOutput} {
		tx.Rule(tx.Hook(name, nftables.ChainTypeNAT, at, before),
			nft.One(nft.LoadProtocol(nft.RegA)), nft.Equal(nft.RegA, []byte{unix.IPPROTO_TCP}),
			[]expr.Any{
				family.LoadDestination(nft.RegA0), nft.LoadPort(family.RegA1()),
				&expr.Lookup{SourceRegister: nft.RegA, SetName: setWanted},
			},
			[]expr.Any{
				&expr.Immediate{Register: nft.RegA, Data: c.To[to].AsSlice()},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family.Number()), RegAddrMin: nft.RegA},
			})
	}
	err = tx.Commit("lead packets of " + c.Of + " to this machine")
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.ENOENT) {
		return fmt.Errorf(
			"%w: the kernel needs nftables with address translation (nf_tables, nft_chain_nat, nft_nat) of %s", err,
			family)
	}
	return err
}
