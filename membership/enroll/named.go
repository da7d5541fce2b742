package enroll

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/barque/barque/membership/join"
)

// NamedServer finds the server in --server, for an agent that has joined before. When the addresses
// of all servers have changed, the agent knows no other address. Its gossip port is assumed to be
// this node's own, as on most clusters' nodes. The result is empty without the flag, or if the name
// has no address now.
func NamedServer(ctx context.Context, o *Options, logger *slog.Logger) []join.Server {
	if o.Join == "" {
		return nil
	}
	host, port, err := serverAddress(o.Join)
	if err == nil {
		var addrs []netip.Addr
		if addrs, err = resolve(ctx, host); err == nil {
			var servers []join.Server
			for _, a := range addrs {
				servers = append(servers,
					join.Server{API: netip.AddrPortFrom(a, port), Gossip: netip.AddrPortFrom(a, o.GossipPort)})
			}
			return servers
		}
	}
	logger.Warn("the server of --server is not looked for", "server", o.Join, "err", err)
	return nil
}

// serverAddress takes https://HOST:PORT, or HOST:PORT, apart.
func serverAddress(text string) (host string, port uint16, err error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return "", 0, err
	}
	if u.Port() == "" {
		return u.Hostname(), 6443, nil
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return u.Hostname(), uint16(n), err
}

// resolveTimeout bounds the look-up of a server's name: the caller has other addresses to try.
const resolveTimeout = 2 * time.Second

func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
}
