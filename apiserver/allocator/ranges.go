package allocator

import (
	"fmt"
	"math/big"
	"net/netip"
	"strconv"
)

const (
	addressPrefix = "/barque/allocations/clusterips/"
	portPrefix    = "/barque/allocations/nodeports/"

	// maxAddresses bounds the part of a large range that is used.
	maxAddresses = 1 << 20

	kubernetesService = "default/kubernetes"
)

// NewAddresses returns the pool of the service addresses in a CIDR. Its first address is reserved
// for the Service default/kubernetes; the network's own address and, in IPv4, the broadcast
// address are not given to anybody.
func NewAddresses(backend Backend, cidr netip.Prefix) (*Pool[netip.Addr], error) {
	if !cidr.IsValid() {
		return nil, fmt.Errorf("service CIDR %v is not valid", cidr)
	}
	cidr = cidr.Masked()
	r := addressRange{cidr: cidr, count: maxAddresses}
	if hostBits := cidr.Addr().BitLen() - cidr.Bits(); hostBits < 20 {
		r.count = 1<<hostBits - 1 // not the network itself
		if cidr.Addr().Is4() {
			r.count-- // nor the broadcast address
		}
	}
	if r.count < 2 {
		return nil, fmt.Errorf("service CIDR %v is too small: it must hold an address besides that of the kubernetes Service", cidr)
	}
	return &Pool[netip.Addr]{
		backend: backend, prefix: addressPrefix, values: r,
		low:           lowBand(r.count, 16, 256),
		reservedIndex: 0, reservedFor: kubernetesService,
	}, nil
}

// NewPorts returns the pool of the node ports from first to last.
func NewPorts(backend Backend, first, last int32) (*Pool[int32], error) {
	if first < 1 || last > 65535 || last < first {
		return nil, fmt.Errorf("node port range %d-%d is not valid", first, last)
	}
	r := portRange{first, last}
	return &Pool[int32]{
		backend: backend, prefix: portPrefix, values: r,
		low:           lowBand(r.size(), 32, 128),
		reservedIndex: -1,
	}, nil
}

// lowBand is the size of the part of a range that is left, as long as possible, to those who ask
// for a certain value: a share of it, at least 16 and at most limit, as KEP-3070 and KEP-3668 have
// it. A small range has none.
func lowBand(size, share, limit int) int {
	if size <= 16 {
		return 0
	}
	return min(max(16, size/share), limit)
}

// addressRange numbers the addresses of a CIDR, the one after the network's own being 0.
type addressRange struct {
	cidr  netip.Prefix
	count int
}

func (r addressRange) size() int { return r.count }

func (r addressRange) at(i int) netip.Addr {
	base := new(big.Int).SetBytes(r.cidr.Addr().AsSlice())
	base.Add(base, big.NewInt(int64(i)+1))
	addr, _ := netip.AddrFromSlice(base.FillBytes(make([]byte, r.cidr.Addr().BitLen()/8)))
	return addr
}

func (r addressRange) index(addr netip.Addr) (int, bool) {
	addr = addr.Unmap()
	if !r.cidr.Contains(addr) {
		return 0, false
	}
	offset := new(big.Int).SetBytes(addr.AsSlice())
	offset.Sub(offset, new(big.Int).SetBytes(r.cidr.Addr().AsSlice()))
	if !offset.IsInt64() || offset.Int64() < 1 || offset.Int64() > int64(r.count) {
		return 0, false
	}
	return int(offset.Int64()) - 1, true
}

func (r addressRange) text(addr netip.Addr) string { return addr.Unmap().String() }

func (r addressRange) parse(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	return addr, err == nil
}

func (r addressRange) describe() (string, string) { return "IP", r.cidr.String() }

// portRange numbers the ports from first to last.
type portRange struct{ first, last int32 }

func (r portRange) size() int { return int(r.last-r.first) + 1 }

func (r portRange) at(i int) int32 { return r.first + int32(i) }

func (r portRange) index(port int32) (int, bool) {
	return int(port - r.first), port >= r.first && port <= r.last
}

func (r portRange) text(port int32) string { return strconv.Itoa(int(port)) }

func (r portRange) parse(text string) (int32, bool) {
	port, err := strconv.ParseInt(text, 10, 32)
	return int32(port), err == nil
}

func (r portRange) describe() (string, string) {
	return "port", fmt.Sprintf("%d-%d", r.first, r.last)
}
