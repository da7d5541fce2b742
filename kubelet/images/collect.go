package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
)

// Containers lists the containers that use images.
type Containers interface {
	ListContainers(ctx context.Context, selector map[string]string) ([]*runtimeapi.Container, error)
	ContainerStatus(ctx context.Context, id string) (*runtimeapi.ContainerStatus, error)
}

// CollectorConfig configures a Collector.
type CollectorConfig struct {
	Images     cri.Images
	Containers Containers
	// HighPercent and LowPercent are the use of the disk at which a collection starts and ends; 85
	// and 80 when 0.
	HighPercent, LowPercent int
	// MinAge is the least age of a removed image, since it was first seen; 2 min when 0.
	MinAge time.Duration
	Every  time.Duration // how often to look; 5 min when 0
	// Usage returns the size and the free bytes of the file system below a directory; statfs when
	// nil.
	Usage  func(dir string) (total, free uint64, err error)
	Now    func() time.Time // time.Now when nil
	Logger *slog.Logger
}

// Collector removes images that no container uses, those unused for longest first, when their disk
// gets full. Pinned images, such as the sandbox's, stay. It is safe for concurrent use.
type Collector struct {
	CollectorConfig

	mu   sync.Mutex         // held while images are removed
	seen map[string]*record // by image ID
}

type record struct {
	first, used time.Time
}

// NewCollector returns a collector.
func NewCollector(config CollectorConfig) *Collector {
	config.HighPercent = cmp.Or(config.HighPercent, 85)
	config.LowPercent = cmp.Or(config.LowPercent, 80)
	config.MinAge = cmp.Or(config.MinAge, 2*time.Minute)
	config.Every = cmp.Or(config.Every, 5*time.Minute)
	if config.Usage == nil {
		config.Usage = statfs
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Collector{CollectorConfig: config, seen: map[string]*record{}}
}

func statfs(dir string) (total, free uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return s.Blocks * uint64(s.Bsize), s.Bavail * uint64(s.Bsize), nil
}

// Run collects until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	// The first look finds images of any age: none was pulled just now for a pod that is starting.
	if err := c.look(ctx, time.Time{}); err != nil && ctx.Err() == nil {
		c.Logger.Warn("cannot tell which images there are; trying again", "err", err)
	}
	ticker := time.NewTicker(c.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := c.Collect(ctx); err != nil && ctx.Err() == nil {
			c.Logger.Warn("cannot remove unused images; trying again", "err", err)
		}
	}
}

// look records the present images. New ones count as first seen at a time.
func (c *Collector) look(ctx context.Context, first time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _, err := c.note(ctx, first)
	return err
}

// Collect removes images once, as far as it must.
func (c *Collector) Collect(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	list, used, err := c.note(ctx, c.Now())
	if err != nil {
		return err
	}
	excess, err := c.excess(ctx)
	if err != nil || excess <= 0 {
		return err
	}
	var errs []error
	for _, image := range c.candidates(list, used) {
		if excess <= 0 {
			break
		}
		if err := c.Images.RemoveImage(ctx, image.Id); err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %s", image.Id, cri.Message(err)))
			continue
		}
		c.Logger.Info("removed an unused image", "image", image.RepoTags, "id", image.Id, "bytes", image.Size)
		excess -= int64(image.Size)
	}
	if excess > 0 && len(errs) == 0 {
		errs = append(errs, fmt.Errorf("the disk stays %d bytes too full: all other images are in use", excess))
	}
	return errors.Join(errs...)
}

// RemoveUnused removes all images that no container uses and that are old enough: a new one may
// have been pulled for a container that is starting.
func (c *Collector) RemoveUnused(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	list, used, err := c.note(ctx, c.Now())
	if err != nil {
		return err
	}
	var errs []error
	for _, image := range c.candidates(list, used) {
		if err := c.Images.RemoveImage(ctx, image.Id); err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %s", image.Id, cri.Message(err)))
			continue
		}
		c.Logger.Info("removed an unused image", "image", image.RepoTags, "id", image.Id, "bytes", image.Size)
	}
	return errors.Join(errs...)
}

func (c *Collector) inUse(ctx context.Context) (map[string]bool, error) {
	containers, err := c.Containers.ListContainers(ctx, nil)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, k := range containers {
		used[k.ImageRef], used[k.ImageId], used[k.GetImage().GetImage()] = true, true, true
		status, err := c.Containers.ContainerStatus(ctx, k.Id)
		if cri.IsNotFound(err) {
			continue // gone since
		}
		if err != nil {
			return nil, err
		}
		for _, m := range status.GetMounts() { // volumes made of images
			used[m.GetImage().GetImage()] = true
		}
	}
	delete(used, "")
	return used, nil
}

func isUsed(image *runtimeapi.Image, used map[string]bool) bool {
	is := func(name string) bool { return used[name] }
	return used[image.Id] || slices.ContainsFunc(image.RepoDigests, is) || slices.ContainsFunc(image.RepoTags, is)
}

// note keeps when each image was first seen and last used. It returns the images that there are,
// and the names of those that are used.
func (c *Collector) note(
	ctx context.Context, first time.Time,
) (list []*runtimeapi.Image, used map[string]bool, err error) {
	if list, err = c.Images.ListImages(ctx); err != nil {
		return nil, nil, fmt.Errorf("list images: %s", cri.Message(err))
	}
	if used, err = c.inUse(ctx); err != nil {
		return nil, nil, fmt.Errorf("list containers: %s", cri.Message(err))
	}
	now := c.Now()
	present := map[string]bool{}
	for _, image := range list {
		present[image.Id] = true
		r := c.seen[image.Id]
		if r == nil {
			r = &record{first: first}
			c.seen[image.Id] = r
		}
		if isUsed(image, used) {
			r.used = now
		}
	}
	for id := range c.seen {
		if !present[id] {
			delete(c.seen, id)
		}
	}
	return list, used, nil
}

// excess returns the bytes that must go; 0 while the disk is not too full.
func (c *Collector) excess(ctx context.Context) (int64, error) {
	info, err := c.Images.ImageFsInfo(ctx)
	if err != nil {
		return 0, err
	}
	var most int64
	for _, f := range info.ImageFilesystems {
		total, free, err := c.Usage(f.GetFsId().GetMountpoint())
		if err != nil {
			return 0, err
		}
		if total == 0 || int((total-free)*100/total) < c.HighPercent {
			continue
		}
		most = max(most, int64(total)*int64(100-c.LowPercent)/100-int64(free))
	}
	return most, nil
}

func (c *Collector) candidates(list []*runtimeapi.Image, used map[string]bool) []*runtimeapi.Image {
	now := c.Now()
	free := slices.DeleteFunc(slices.Clone(list), func(image *runtimeapi.Image) bool {
		return image.Pinned || isUsed(image, used) || now.Sub(c.seen[image.Id].first) < c.MinAge
	})
	slices.SortFunc(free, func(a, b *runtimeapi.Image) int {
		x, y := c.seen[a.Id], c.seen[b.Id]
		return cmp.Or(x.used.Compare(y.used), x.first.Compare(y.first))
	})
	return free
}
