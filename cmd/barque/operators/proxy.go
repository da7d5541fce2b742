package operators

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/barque/barque/apiserver/klogs"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/membership/balancer"
)

// ProxyCommand is `barque proxy`.
func ProxyCommand() *cobra.Command {
	var servers []string
	var listen string
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Give this machine one address that always leads to a living API server",
		Long: `Listen on a local address and forward each connection to a ready API server. New
connections avoid a dead or silent server within a second. Open connections are cut when
their server has been silent for five seconds and another one answers: the clients then
reconnect to that one. TLS stays between the client and the server.`,
		Example: "  barque proxy --listen 127.0.0.1:6443 --server 10.0.0.1:6443 --server 10.0.0.2:6443 --server 10.0.0.3:6443",
		Args:    command.NoArgs,
	}
	cmd.Flags().StringArrayVar(&servers, "server", nil, "an API server, IP:PORT; repeat it for each")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:6443", "address to listen on")
	connections := connlimit.NewFlags()
	connections.AddFlags(cmd.Flags())
	kubeconfig := command.KubeconfigFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		var addrs []netip.AddrPort
		for _, s := range servers {
			addr, err := netip.ParseAddrPort(s)
			if err != nil {
				return command.Usage(c, fmt.Errorf("--server %q: %w", s, err))
			}
			addrs = append(addrs, addr)
		}
		if len(addrs) == 0 {
			return command.Usage(c, errors.New("give at least one --server"))
		}
		if _, err := net.ResolveTCPAddr("tcp", listen); err != nil {
			return command.Usage(c, fmt.Errorf("--listen %q: want HOST:PORT: %w", listen, err))
		}
		limits, err := connections.Limits()
		if err != nil {
			return command.Usage(c, err)
		}
		config, err := command.ClientConfig(*kubeconfig)
		if err != nil {
			return err
		}
		logger := command.NewLogger(slog.LevelInfo)
		klogs.Bridge(logger)
		return balancer.Forward(c.Context(), listen, addrs, config.CAData, limits, logger)
	}
	return cmd
}
