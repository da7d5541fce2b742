package speaker

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

const (
	headerLen = bgp.BGP_HEADER_LENGTH
	// maxLen bounds messages of a peer: the speaker does not announce longer ones (RFC 8654).
	maxLen = 4096
	// perUpdate bounds the routes of an UPDATE, whose bytes stay below maxLen with the largest
	// attributes that a pool may have.
	perUpdate = 100
	// asTrans stands for a number of four bytes in the field of two (RFC 6793).
	asTrans = 23456
	// restarted is the flag R of a graceful restart.
	restarted = true
)

// message is one of a peer: an OPEN and a NOTIFICATION as they are, and of all others the type.
type message struct {
	kind         uint8
	open         *bgp.BGPOpen
	notification *bgp.BGPNotification
}

// fault is a wrong message of the peer, which a NOTIFICATION answers.
type fault struct {
	code, subcode uint8
	data          []byte
	text          string
}

func (f *fault) Error() string { return f.text }

// faultOf is the fault that gobgp has found.
func faultOf(err error) error {
	if of, ok := errors.AsType[*bgp.MessageError](err); ok {
		return &fault{of.TypeCode, of.SubTypeCode, of.Data, "the router has sent a wrong message: " + of.Message}
	}
	return &fault{code: bgp.BGP_ERROR_CEASE, text: "the router has sent a wrong message: " + err.Error()}
}

// read reads one message.
func read(from io.Reader) (message, error) {
	var head [headerLen]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return message{}, err
	}
	for _, b := range head[:16] {
		if b != 0xff {
			return message{}, &fault{bgp.BGP_ERROR_MESSAGE_HEADER_ERROR, bgp.BGP_ERROR_SUB_CONNECTION_NOT_SYNCHRONIZED,
				nil, "the router has sent something that is not BGP"}
		}
	}
	length, kind := int(head[16])<<8|int(head[17]), head[18]
	if length < headerLen || length > maxLen || kind == bgp.BGP_MSG_KEEPALIVE && length != headerLen {
		return message{}, &fault{bgp.BGP_ERROR_MESSAGE_HEADER_ERROR, bgp.BGP_ERROR_SUB_BAD_MESSAGE_LENGTH,
			slices.Clone(head[16:18]), fmt.Sprintf("the router has sent a message of %d bytes", length)}
	}
	body := make([]byte, length-headerLen)
	if _, err := io.ReadFull(from, body); err != nil {
		return message{}, err
	}
	switch kind {
	case bgp.BGP_MSG_OPEN:
		var open bgp.BGPOpen
		if err := decoded(func() error { return open.DecodeFromBytes(body) }); err != nil {
			return message{}, err
		}
		return message{kind: kind, open: &open}, nil
	case bgp.BGP_MSG_NOTIFICATION:
		var n bgp.BGPNotification
		if err := decoded(func() error { return n.DecodeFromBytes(body) }); err != nil {
			return message{}, err
		}
		return message{kind: kind, notification: &n}, nil
	case bgp.BGP_MSG_UPDATE, bgp.BGP_MSG_KEEPALIVE, bgp.BGP_MSG_ROUTE_REFRESH:
		return message{kind: kind}, nil
	}
	return message{}, &fault{bgp.BGP_ERROR_MESSAGE_HEADER_ERROR, bgp.BGP_ERROR_SUB_BAD_MESSAGE_TYPE, []byte{kind},
		fmt.Sprintf("the router has sent a message of the unknown type %d", kind)}
}

// decoded turns what the library finds wrong in a router's bytes into a fault. A panic of it must
// not end the node.
func decoded(decode func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &fault{bgp.BGP_ERROR_MESSAGE_HEADER_ERROR, bgp.BGP_ERROR_SUB_BAD_MESSAGE_TYPE, nil,
				fmt.Sprintf("the router has sent a message that cannot be read: %v", p)}
		}
	}()
	if err := decode(); err != nil {
		return faultOf(err)
	}
	return nil
}

// familyOf is BGP's name of an address's family.
func familyOf(a netip.Addr) bgp.Family {
	if a.Is4() {
		return bgp.RF_IPv4_UC
	}
	return bgp.RF_IPv6_UC
}

// openOf is this side's OPEN.
func openOf(p *Peer, id netip.Addr) (*bgp.BGPMessage, error) {
	family := familyOf(p.Address.Addr())
	capabilities := []bgp.ParameterCapabilityInterface{
		bgp.NewCapMultiProtocol(family), bgp.NewCapRouteRefresh(), bgp.NewCapFourOctetASNumber(p.LocalAS),
	}
	if p.RestartTime > 0 {
		capabilities = append(capabilities, bgp.NewCapGracefulRestart(restarted, false,
			uint16(p.RestartTime/time.Second),
			[]*bgp.CapGracefulRestartTuple{bgp.NewCapGracefulRestartTuple(family, true)}))
	}
	as := uint16(asTrans)
	if p.LocalAS < 1<<16 {
		as = uint16(p.LocalAS)
	}
	return bgp.NewBGPOpenMessage(as, uint16(p.HoldTime/time.Second), id,
		[]bgp.OptionParameterInterface{bgp.NewOptionParameterCapability(capabilities)})
}

// agreed is what both sides of a session have said in their OPENs.
type agreed struct {
	hold    time.Duration // 0: the session has no keepalives
	restart bool          // the peer keeps routes over a restart
}

// agree reads the peer's OPEN.
func agree(p *Peer, id netip.Addr, open *bgp.BGPOpen) (agreed, error) {
	as, err := bgp.ValidateOpenMsg(open, 0, p.LocalAS, id)
	if err != nil {
		return agreed{}, faultOf(err)
	}
	if as != p.AS {
		return agreed{}, &fault{bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_BAD_PEER_AS, nil,
			fmt.Sprintf("the router is of AS %d, and the BGPPeer says %d", as, p.AS)}
	}
	want := familyOf(p.Address.Addr())
	var families []bgp.Family
	wide, out := false, agreed{hold: min(p.HoldTime, time.Duration(open.HoldTime)*time.Second)}
	for _, o := range open.OptParams {
		of, ok := o.(*bgp.OptionParameterCapability)
		if !ok {
			continue
		}
		for _, c := range of.Capability {
			switch c := c.(type) {
			case *bgp.CapFourOctetASNumber:
				wide = true
			case *bgp.CapMultiProtocol:
				families = append(families, c.CapValue)
			case *bgp.CapGracefulRestart:
				out.restart = p.RestartTime > 0
			}
		}
	}
	// Without any such capability a peer speaks IPv4 (RFC 4760).
	if !slices.Contains(families, want) && (len(families) > 0 || want != bgp.RF_IPv4_UC) {
		return agreed{}, &fault{bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_UNSUPPORTED_CAPABILITY, nil,
			fmt.Sprintf("the router does not take routes of the family %v in this session; switch that on there", want)}
	}
	if !wide {
		return agreed{}, &fault{bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_UNSUPPORTED_CAPABILITY, nil,
			"the router does not know AS numbers of four bytes (RFC 6793)"}
	}
	return out, nil
}

// announce returns UPDATEs of routes with the same attributes. own is the session's own address.
func announce(p *Peer, own netip.Addr, of Attributes, prefixes []netip.Prefix) ([]*bgp.BGPMessage, error) {
	attributes := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP)}
	if p.AS == p.LocalAS {
		attributes = append(attributes, bgp.NewPathAttributeAsPath(nil))
	} else {
		attributes = append(attributes, bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{
			bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, []uint32{p.LocalAS})}))
	}
	family := familyOf(own)
	if family == bgp.RF_IPv4_UC {
		next, err := bgp.NewPathAttributeNextHop(own)
		if err != nil {
			return nil, err
		}
		attributes = append(attributes, next)
	}
	if p.AS == p.LocalAS {
		attributes = append(attributes, bgp.NewPathAttributeLocalPref(of.LocalPreference))
	}
	if len(of.Communities) > 0 {
		attributes = append(attributes, bgp.NewPathAttributeCommunities(of.Communities))
	}
	var out []*bgp.BGPMessage
	for some := range slices.Chunk(prefixes, perUpdate) {
		routes, err := nlri(some)
		if err != nil {
			return nil, err
		}
		all := slices.Clone(attributes)
		if family != bgp.RF_IPv4_UC {
			reach, err := bgp.NewPathAttributeMpReachNLRI(family, routes, own)
			if err != nil {
				return nil, err
			}
			all, routes = append(all, reach), nil
		}
		if len(of.LargeCommunities) > 0 {
			var large []*bgp.LargeCommunity
			for _, c := range of.LargeCommunities {
				large = append(large, bgp.NewLargeCommunity(c[0], c[1], c[2]))
			}
			all = append(all, bgp.NewPathAttributeLargeCommunities(large))
		}
		out = append(out, bgp.NewBGPUpdateMessage(nil, all, routes))
	}
	return out, nil
}

// withdraw returns UPDATEs that withdraw routes of one family.
func withdraw(prefixes []netip.Prefix) ([]*bgp.BGPMessage, error) {
	var out []*bgp.BGPMessage
	for some := range slices.Chunk(prefixes, perUpdate) {
		routes, err := nlri(some)
		if err != nil {
			return nil, err
		}
		if family := familyOf(some[0].Addr()); family != bgp.RF_IPv4_UC {
			unreach, err := bgp.NewPathAttributeMpUnreachNLRI(family, routes)
			if err != nil {
				return nil, err
			}
			out = append(out, bgp.NewBGPUpdateMessage(nil, []bgp.PathAttributeInterface{unreach}, nil))
			continue
		}
		out = append(out, bgp.NewBGPUpdateMessage(routes, nil, nil))
	}
	return out, nil
}

func nlri(prefixes []netip.Prefix) ([]bgp.PathNLRI, error) {
	var out []bgp.PathNLRI
	for _, p := range prefixes {
		of, err := bgp.NewIPAddrPrefix(p)
		if err != nil {
			return nil, fmt.Errorf("the route %s: %w", p, err)
		}
		out = append(out, bgp.PathNLRI{NLRI: of})
	}
	return out, nil
}

// endedBy is the error for a session that the peer has ended.
func endedBy(n *bgp.BGPNotification) error {
	text := fmt.Sprintf("the router has ended the session: %s",
		bgp.NewNotificationErrorCode(n.ErrorCode, n.ErrorSubcode))
	if n.ErrorCode != bgp.BGP_ERROR_CEASE || len(n.Data) == 0 {
		return errors.New(text)
	}
	// RFC 9003: an administrator may give the reason, with its length before it.
	reason := n.Data[1:min(len(n.Data), 1+int(n.Data[0]))]
	if words := printable(reason); words != "" {
		text += ": " + words
	}
	return errors.New(text)
}

// printable is a peer's text as it may be shown in a terminal.
func printable(text []byte) string {
	if !utf8.Valid(text) {
		return ""
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, string(text)))
}

// ordered returns the prefixes of a map, in order.
func ordered[V any](of map[netip.Prefix]V) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(of))
	for p := range of {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return out
}
