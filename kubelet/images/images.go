// Package images gets the images of containers, by their pull policy and with the pod's
// credentials, and removes unused ones when the disk fills.
//
// It bounds the concurrent pulls. Requests for the same image with the same credentials share one
// pull. Back-off between failures is the caller's.
package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
)

// Reasons of a container without its image.
const (
	ReasonPull    = "ErrImagePull"
	ReasonNever   = "ErrImageNeverPull"
	ReasonInvalid = "InvalidImageName"
	ReasonInspect = "ImageInspectError"
)

// Error is the failure to get an image, with upstream's reason.
type Error struct {
	Reason string
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Events records events of pods.
type Events interface {
	Event(pod *v1.Pod, container *v1.Container, kind, reason, message string)
}

// Secrets reads the credentials that a pod names.
type Secrets interface {
	Secret(ctx context.Context, pod *v1.Pod, name string) (*v1.Secret, error)
}

// Config configures a Puller.
type Config struct {
	Images  cri.Images
	Secrets Secrets
	Events  Events
	Logger  *slog.Logger
	// Parallel bounds the pulls that run at a time; 5 when 0.
	Parallel int
	// QPS bounds the pulls that begin in a second, Burst those that begin at once; no bound when 0.
	QPS   float32
	Burst int
}

// Puller gets images. It is safe for concurrent use.
type Puller struct {
	images  cri.Images
	secrets Secrets
	events  Events
	log     *slog.Logger
	slots   chan struct{}
	rate    flowcontrol.RateLimiter // nil without a bound

	mu      sync.Mutex
	running map[string]*pull
}

type pull struct {
	done chan struct{}
	ref  string
	err  error
}

// NewPuller returns a Puller.
func NewPuller(config Config) *Puller {
	if config.Parallel <= 0 {
		config.Parallel = 5
	}
	p := &Puller{
		images: config.Images, secrets: config.Secrets, events: config.Events, log: config.Logger,
		slots: make(chan struct{}, config.Parallel), running: map[string]*pull{},
	}
	if config.QPS > 0 {
		p.rate = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
	}
	return p
}

// Ensure makes the image of a container present by its pull policy, and returns the reference for
// the container. A failure is an *Error.
func (p *Puller) Ensure(
	ctx context.Context, pod *v1.Pod, container *v1.Container, sandbox *runtimeapi.PodSandboxConfig,
) (string, error) {
	image, err := Normalize(container.Image)
	if err != nil {
		return "",
			p.fail(pod, container, ReasonInvalid,
				fmt.Errorf("failed to apply default image tag %q: %w", container.Image, err))
	}
	present, err := p.images.ImageStatus(ctx, image)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "",
			p.fail(pod, container, ReasonInspect, fmt.Errorf("failed to inspect image %q: %s", image, cri.Message(err)))
	}
	policy := PolicyOf(container)
	if present != nil && policy != v1.PullAlways {
		p.events.Event(pod, container, v1.EventTypeNormal, "Pulled",
			fmt.Sprintf("Container image %q already present on machine", container.Image))
		return present.Id, nil
	}
	if policy == v1.PullNever {
		return "", p.fail(pod, container, ReasonNever,
			fmt.Errorf("container image %q is not present with pull policy of Never", container.Image))
	}
	p.events.Event(pod, container, v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", container.Image))
	began := time.Now()
	ref, err := p.pull(ctx, pod, image, sandbox)
	if err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "",
			p.fail(pod, container, ReasonPull,
				fmt.Errorf("failed to pull image %q: %s", container.Image, cri.Message(err)))
	}
	p.events.Event(pod, container, v1.EventTypeNormal, "Pulled",
		fmt.Sprintf("Successfully pulled image %q in %s", container.Image, time.Since(began).Round(time.Millisecond)))
	return ref, nil
}

func (p *Puller) fail(pod *v1.Pod, container *v1.Container, reason string, err error) error {
	event := "Failed"
	if reason == ReasonInvalid {
		event = "InspectFailed"
	}
	if reason == ReasonNever {
		event = "ErrImageNeverPull"
	}
	p.events.Event(pod, container, v1.EventTypeWarning, event, strings.ToUpper(err.Error()[:1])+err.Error()[1:])
	return &Error{Reason: reason, Err: err}
}

// PolicyOf returns the pull policy of a container: images with a moving tag are always pulled
// unless the container has a policy.
func PolicyOf(c *v1.Container) v1.PullPolicy {
	if c.ImagePullPolicy != "" {
		return c.ImagePullPolicy
	}
	image, err := Normalize(c.Image)
	if err == nil && strings.HasSuffix(image, ":latest") {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

// Normalize completes an image name with the default registry and tag.
func Normalize(image string) (string, error) {
	named, err := reference.ParseDockerRef(image)
	if err != nil {
		return "", err
	}
	return named.String(), nil
}

// pull joins a pull of the same image with the same credentials, or starts one.
func (p *Puller) pull(
	ctx context.Context, pod *v1.Pod, image string, sandbox *runtimeapi.PodSandboxConfig,
) (string, error) {
	auths, err := p.credentials(ctx, pod, image)
	if err != nil {
		return "", err
	}
	key := image
	for _, auth := range auths {
		key += "\x00" + auth.String()
	}
	for {
		p.mu.Lock()
		running, joined := p.running[key]
		if !joined {
			running = &pull{done: make(chan struct{})}
			p.running[key] = running
		}
		p.mu.Unlock()
		if !joined {
			running.ref, running.err = p.fetch(ctx, image, auths, sandbox)
			p.mu.Lock()
			delete(p.running, key)
			p.mu.Unlock()
			close(running.done)
			return running.ref, running.err
		}
		select {
		case <-running.done:
			if !errors.Is(running.err, errAbandoned) {
				return running.ref, running.err
			}
			// The caller of this pull has gone; this one still waits.
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

var (
	errAbandoned = errors.New("the pull was abandoned")
	errTooMany   = errors.New("pull QPS exceeded")
)

func (p *Puller) fetch(
	ctx context.Context, image string, auths []*runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig,
) (string, error) {
	if p.rate != nil && !p.rate.TryAccept() {
		return "", errTooMany
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return "", errAbandoned
	}
	if len(auths) == 0 {
		auths = []*runtimeapi.AuthConfig{nil}
	}
	var errs []error
	for _, auth := range auths {
		ref, err := p.images.PullImage(ctx, image, auth, sandbox)
		if err == nil {
			return ref, nil
		}
		if ctx.Err() != nil {
			return "", errAbandoned
		}
		errs = append(errs, err)
	}
	if len(errs) == 1 {
		return "", errs[0]
	}
	return "", errors.Join(errs...)
}
