package proxy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
)

// forget removes, from the affinity maps of chains that changed, the clients
// that are bound to backends which are gone. New entries for those cannot come
// up: the chains no longer know them.
func (t table) forget(changed map[string]Chain) error {
	tx, err := t.begin()
	if err != nil {
		return err
	}
	for name, chain := range changed {
		if chain.Affinity == 0 {
			continue
		}
		set := tx.affinityMap(name, chain.Affinity)
		elements, err := tx.GetSetElements(set)
		if err != nil {
			return fmt.Errorf("nftables: read the affinities of %s: %w", name, err)
		}
		var gone []nftables.SetElement
		for _, element := range elements {
			if backend, ok := parseBackend(element.Val); !ok || !slices.Contains(chain.Backends, backend) {
				gone = append(gone, nftables.SetElement{Key: element.Key})
			}
		}
		tx.DeleteElements(set, gone)
	}
	return tx.Commit("forget affinities")
}

func parseBackend(value []byte) (Backend, bool) {
	if len(value) < 6 {
		return Backend{}, false
	}
	addr, ok := netip.AddrFromSlice(value[:4])
	return Backend{Addr: addr, Port: binary.BigEndian.Uint16(value[4:])}, ok
}
