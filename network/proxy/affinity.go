package proxy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"github.com/barque/barque/network/nft"
)

// forget removes, from the affinity maps of changed chains, the clients of removed backends. New
// entries for those cannot appear: the chains no longer have them.
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
			if backend, ok := parseBackend(t.family, element.Val); !ok || !slices.Contains(chain.Backends, backend) {
				gone = append(gone, nftables.SetElement{Key: element.Key})
			}
		}
		tx.DeleteElements(set, gone)
	}
	return tx.Commit("forget affinities")
}

func parseBackend(family nft.Family, value []byte) (Backend, bool) {
	length := int(family.Len())
	if len(value) < length+2 {
		return Backend{}, false
	}
	addr, ok := netip.AddrFromSlice(value[:length])
	return Backend{Addr: addr, Port: binary.BigEndian.Uint16(value[length:])}, ok
}
