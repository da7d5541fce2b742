// The command csi-driver serves the tests' CSI driver on one node.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/cluster-test/csidriver"
)

func main() {
	config := csidriver.Config{Host: csidriver.Mounts{}}
	flag.StringVar(&config.Name, "name", "csi.test.barque.io", "name of the driver")
	flag.StringVar(&config.Node, "node", "", "the driver's ID of this node")
	flag.StringVar(&config.Root, "root", "", "directory of the volumes")
	flag.Int64Var(&config.MaxVolumes, "max-volumes", 0, "how many volumes the node takes; 0 for any number")
	flag.StringVar(&config.Socket, "socket", "", "socket of the driver; its directory is made")
	flag.BoolVar(&config.Shared, "shared", false, "the drivers of other nodes have the same directory of volumes")
	registration := flag.String("registration", "", "socket in the kubelet's plugins_registry; none when empty")
	flag.Parse()
	if err := run(config, *registration); err != nil {
		fmt.Fprintln(os.Stderr, "csi-driver:", err)
		os.Exit(1)
	}
}

func run(config csidriver.Config, registration string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	for _, dir := range []string{config.Root, filepath.Dir(config.Socket)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	d, err := csidriver.New(config)
	if err != nil {
		return err
	}
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return d.Serve(ctx) })
	if registration != "" {
		parts.Go(func() error { return d.Register(ctx, registration) })
	}
	return parts.Wait()
}
