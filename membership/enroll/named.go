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

// NamedServer finds the server that --server names, for an agent that has joined before: when the
// addresses of all servers have changed, it is the only one whose address the agent knows. Its
// gossip is looked for at this node's own port, which is the same on most clusters' nodes. Nothing
// when the flag was not given, or its name has no address now.
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
				servers = append(servers, join.Server{API: netip.AddrPortFrom(a, port), Gossip: netip.AddrPortFrom(a, o.GossipPort)})
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

// resolveTimeout bounds the question for a server's name: who asks has other addresses to try.
const resolveTimeout = 2 * time.Second

func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
}
