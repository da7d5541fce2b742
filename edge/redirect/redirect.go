// Package redirect leads packets for the API's own addresses to this server's API, while the server
// holds them.
//
// It owns one nftables table of each family, so it needs neither the service proxy nor a node that
// runs pods. The address is on no interface: the kernel would answer for it after this process had
// died. What the rules apply to is a set whose elements the kernel forgets after Lifetime. So a
// process that died leaves no rule behind that keeps the machine's own clients from the next
// holder.
package redirect

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/edge/hold"
	"github.com/barque/barque/network/nft"
)

// TableName is the name of the tables.
const TableName = "barque-api"

const (
	// Lifetime is how long the kernel redirects without a word of this process.
	Lifetime = 10 * time.Second
	// refresh is how often the rules are written again while something is held.
	refresh = Lifetime / 3
	// again is the pause after an error.
	again = time.Second

	setHeld = "held"
)

// Config of Run. All but Logger are needed.
type Config struct {
	// Held returns the addresses that this node holds, and a channel that is closed when that
	// changes.
	Held func() ([]hold.Hold, <-chan struct{})
	// Addresses are those of the API. Others that the node holds are not redirected.
	Addresses []netip.Addr
	// To are this server's own addresses, the first of each family counts.
	To []netip.Addr
	// Port is the API's, at both.
	Port   uint16
	Logger *slog.Logger
}

// Run keeps the rules until ctx ends. Then it removes them.
func Run(ctx context.Context, c Config) error {
	logger := c.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	writer := new(nft.Writer)
	defer func() {
		if err := Purge(); err != nil {
			logger.Warn("cannot remove the rules of the API's address; the kernel forgets its address by itself", "err",
				err)
		}
	}()
	written := map[nft.Family]bool{nft.IPv4: true, nft.IPv6: true} // by an earlier process, perhaps
	said := ""
	for {
		holds, changed := c.Held()
		wait, text := time.Hour, ""
		for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
			held := of(family, holds, c.Addresses)
			if len(held) == 0 && !written[family] {
				continue
			}
			if err := write(writer, family, held, c); err != nil {
				text, wait = err.Error(), again
				continue
			}
			if written[family] = len(held) > 0; written[family] {
				wait = min(wait, refresh)
			}
		}
		if text != "" && text != said {
			logger.Error("cannot lead the API's address to this server, and will try again", "err", text)
		}
		said = text
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

// Purge removes the tables. A missing one is no error.
func Purge() error {
	w := new(nft.Writer)
	return errors.Join(w.Purge(nft.Name{Family: nft.IPv4, Table: TableName}),
		w.Purge(nft.Name{Family: nft.IPv6, Table: TableName}))
}

// of returns the held addresses of the API of one family.
func of(family nft.Family, holds []hold.Hold, addresses []netip.Addr) (out []netip.Addr) {
	for _, h := range holds {
		if family.Has(h.Addr) && slices.Contains(addresses, h.Addr) {
			out = append(out, h.Addr)
		}
	}
	return out
}

// write writes one family's table, in one transaction. Existing connections keep their translation,
// which is in the connection tracking.
func write(w *nft.Writer, family nft.Family, held []netip.Addr, c Config) error {
	name := nft.Name{Family: family, Table: TableName}
	to := slices.IndexFunc(c.To, family.Has)
	if len(held) == 0 || to < 0 {
		return w.Purge(name)
	}
	tx, err := w.Begin(name)
	if err != nil {
		return err
	}
	tx.Clear()
	set := &nftables.Set{Table: tx.Table, Name: setHeld, KeyType: family.TypeAddr(), HasTimeout: true,
		Timeout: Lifetime}
	tx.MakeSet(set)
	var elements []nftables.SetElement
	for _, addr := range held {
		elements = append(elements, nftables.SetElement{Key: addr.AsSlice()})
	}
	tx.AddElements(set, elements)
	// The machine's own clients pass output, and all others prerouting. The service proxy's chains
	// come after, and know nothing of these addresses.
	before := nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest - 1)
	for name, at := range map[string]*nftables.ChainHook{"prerouting": nftables.ChainHookPrerouting,
		"output": nftables.ChainHookOutput} {
		tx.Rule(tx.Hook(name, nftables.ChainTypeNAT, at, before),
			nft.One(family.LoadDestination(nft.RegA)),
			nft.One(&expr.Lookup{SourceRegister: nft.RegA, SetName: setHeld}),
			nft.One(nft.LoadProtocol(nft.RegA)), nft.Equal(nft.RegA, []byte{unix.IPPROTO_TCP}),
			nft.One(nft.LoadPort(nft.RegA)), nft.Equal(nft.RegA, []byte{byte(c.Port >> 8), byte(c.Port)}),
			[]expr.Any{
				&expr.Immediate{Register: nft.RegA, Data: c.To[to].AsSlice()},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family.Number()), RegAddrMin: nft.RegA},
			})
	}
	return tx.Commit("lead the API's address to this server")
}
