package clustertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/barque/barque/cluster-test/disk"
)

// Disk is the one that a node's data directory is on; nil when it has none of its own.
func (c *Cluster) Disk(node string) *disk.Disk { return c.disks[node] }

// images is where the disks' image files are: outside the cluster's own directory, which `dev down`
// must leave empty.
func (c *Cluster) images() string { return c.Dir + "-disks" }

func (c *Cluster) makeDisks(nodes []string, megabytes int) error {
	if err := os.MkdirAll(c.images(), 0o700); err != nil {
		return err
	}
	c.disks = make(map[string]*disk.Disk)
	for _, node := range nodes {
		d, err := disk.New(filepath.Join(c.images(), node), c.DataDir(node), megabytes)
		if err != nil {
			return fmt.Errorf("a disk for %s: %w", node, err)
		}
		c.disks[node] = d
	}
	return nil
}

// thawDisks frees processes that hang on a frozen disk, which cannot be ended otherwise. It finds
// the disks by their image files, because their makers may be gone.
func (c *Cluster) thawDisks() {
	images, _ := filepath.Glob(filepath.Join(c.images(), "*")) // the pattern is well-formed
	for _, image := range images {
		// one that is not mounted is not frozen
		_ = (&disk.Disk{Image: image, Mount: c.DataDir(filepath.Base(image))}).Thaw()
	}
}

// KillMachine ends all processes of a node, its pods too, as when the machine loses power: data
// that was written to its disk and not synced is lost.
func (c *Cluster) KillMachine(ctx context.Context, node string) error {
	d := c.Disk(node)
	if d != nil {
		if err := d.CutPower(); err != nil {
			return err
		}
	}
	if r := c.DevResult(ctx, "kill", "--machine", node); r.Error != nil {
		return r.Error
	}
	if d != nil {
		return d.Attach() // the kill has unmounted it
	}
	return nil
}
