package nodeipam

import "net/netip"

// free returns the lowest block of the given length in cluster that overlaps none of used.
func free(cluster netip.Prefix, bits int, used []netip.Prefix) (netip.Prefix, bool) {
	taken := make([]bool, 1<<(bits-cluster.Bits()))
	for _, u := range used {
		mark(taken, cluster, bits, u)
	}
	for i, t := range taken {
		if !t {
			return block(cluster, bits, i), true
		}
	}
	return netip.Prefix{}, false
}

// mark sets every block that p overlaps.
func mark(taken []bool, cluster netip.Prefix, bits int, p netip.Prefix) {
	if !cluster.Overlaps(p) {
		return
	}
	if p.Bits() <= cluster.Bits() {
		for i := range taken {
			taken[i] = true
		}
		return
	}
	first := indexOf(cluster, bits, p.Masked().Addr())
	n := 1
	if p.Bits() < bits {
		n = 1 << (bits - p.Bits())
	}
	for i := first; i < first+n; i++ {
		taken[i] = true
	}
}

// block returns the i-th block: the bits of i, written behind the cluster's prefix.
func block(cluster netip.Prefix, bits, i int) netip.Prefix {
	raw := cluster.Addr().AsSlice()
	for b := range bits - cluster.Bits() {
		if i&(1<<b) != 0 {
			at := bits - 1 - b
			raw[at/8] |= 0x80 >> (at % 8)
		}
	}
	addr, _ := netip.AddrFromSlice(raw)
	return netip.PrefixFrom(addr, bits)
}

// indexOf is the number of the block in which an address of cluster lies.
func indexOf(cluster netip.Prefix, bits int, addr netip.Addr) int {
	raw := addr.AsSlice()
	n := 0
	for at := cluster.Bits(); at < bits; at++ {
		n <<= 1
		if raw[at/8]&(0x80>>(at%8)) != 0 {
			n |= 1
		}
	}
	return n
}
