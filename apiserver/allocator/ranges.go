package allocator

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"strconv"
)

// maxAddresses bounds the part of a large range from which addresses are chosen.
const maxAddresses = 1 << 20

// values is a range of values, numbered from 0.
type values[T any] interface {
	// size is how many there are to choose from.
	size() int
	at(i int) T
	contains(v T) bool
	String() string
}

// Range is a range of values.
type Range[T any] struct {
	values values[T]
	// low is how many values at the beginning are chosen only when all others are taken.
	low int
}

// Contains reports whether the value may be given to a Service.
func (r Range[T]) Contains(v T) bool { return r.values.contains(v) }

// First is the first value that may be chosen.
func (r Range[T]) First() T { return r.values.at(0) }

// String names the range as people write it.
func (r Range[T]) String() string { return r.values.String() }

// tries is how many values are drawn before the range is searched.
const tries = 16

// Choose returns a value for which free is true, false when there is none.
func (r Range[T]) Choose(free func(T) bool) (T, bool) {
	for i := range r.candidates() {
		if v := r.values.at(i); free(v) {
			return v, true
		}
	}
	var none T
	return none, false
}

// candidates yields the numbers of values to try: a few drawn from the upper part of the range,
// then all of that part, then the low band.
func (r Range[T]) candidates() func(yield func(int) bool) {
	return func(yield func(int) bool) {
		high := r.values.size() - r.low
		if high > 0 {
			for range tries {
				if !yield(r.low + rand.IntN(high)) {
					return
				}
			}
		}
		for _, part := range [][2]int{{r.low, high}, {0, r.low}} {
			first, count := part[0], part[1]
			if count <= 0 {
				continue
			}
			start := rand.IntN(count)
			for i := range count {
				if !yield(first + (start+i)%count) {
					return
				}
			}
		}
	}
}

// Addresses returns the addresses of a CIDR. The network's own address and, in IPv4, the broadcast
// address are not among them, so that the smallest prefixes have none.
func Addresses(cidr netip.Prefix) Range[netip.Addr] {
	cidr = cidr.Masked()
	r := addressRange{cidr: cidr, count: maxAddresses}
	if hostBits := cidr.Addr().BitLen() - cidr.Bits(); hostBits < 20 {
		r.count = 1<<hostBits - 1 // not the network itself
		if cidr.Addr().Is4() {
			r.count-- // nor the broadcast address
		}
	}
	r.count = max(r.count, 0)
	return Range[netip.Addr]{r, lowBand(r.count, 16, 256)}
}

// Ports returns the node ports from first to last.
func Ports(first, last int32) (Range[int32], error) {
	if first < 1 || last > 65535 || last < first {
		return Range[int32]{}, fmt.Errorf("node port range %d-%d is not valid", first, last)
	}
	r := portRange{first, last}
	return Range[int32]{r, lowBand(r.size(), 32, 128)}, nil
}

// lowBand returns the size of the part of a range that is kept, as long as possible, for requests
// of a certain value: a share of the range, at least 16 and at most limit. A small range has none.
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

// contains is true also beyond the part that is chosen from.
func (r addressRange) contains(addr netip.Addr) bool {
	addr = addr.Unmap()
	if !r.cidr.Contains(addr) || addr == r.cidr.Addr() {
		return false
	}
	return addr.Is6() || r.cidr.Contains(addr.Next())
}

func (r addressRange) String() string { return r.cidr.String() }

// portRange numbers the ports from first to last.
type portRange struct{ first, last int32 }

func (r portRange) size() int { return int(r.last-r.first) + 1 }

func (r portRange) at(i int) int32 { return r.first + int32(i) }

func (r portRange) contains(port int32) bool { return port >= r.first && port <= r.last }

func (r portRange) String() string {
	return strconv.Itoa(int(r.first)) + "-" + strconv.Itoa(int(r.last))
}
