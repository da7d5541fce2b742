package images

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri/fake"
)

type quiet struct{}

func (quiet) Event(*v1.Pod, *v1.Container, string, string, string) {}

const app = "docker.io/library/app:1"

func TestEnsure(t *testing.T) {
	for _, c := range []struct {
		name   string
		image  string
		policy v1.PullPolicy
		there  []string
		pulls  []string
		reason string
	}{
		{"present", "app:1", v1.PullIfNotPresent, []string{app}, nil, ""},
		{"absent", "app:1", v1.PullIfNotPresent, nil, []string{app}, ""},
		{"always", "app:1", v1.PullAlways, []string{app}, []string{app}, ""},
		{"never and absent", "app:1", v1.PullNever, nil, nil, ReasonNever},
		{"never and present", "app:1", v1.PullNever, []string{app}, nil, ""},
		{"latest is pulled by default", "app", "", []string{"docker.io/library/app:latest"},
			[]string{"docker.io/library/app:latest"}, ""},
		{"not a name", "No Name", "", nil, nil, ReasonInvalid},
		{"refused", "refused:1", v1.PullAlways, nil, nil, ReasonPull},
	} {
		runtime := fake.New(c.there...)
		runtime.Fail(func(_, name string) error {
			if name == "docker.io/library/refused:1" {
				return errors.New("denied")
			}
			return nil
		})
		p := NewPuller(Config{Images: runtime, Events: quiet{}, Logger: slog.New(slog.DiscardHandler)})
		_, err := p.Ensure(context.Background(), &v1.Pod{}, &v1.Container{Image: c.image, ImagePullPolicy: c.policy},
			nil)
		var failure *Error
		if errors.As(err, &failure) != (c.reason != "") || (failure != nil && failure.Reason != c.reason) ||
			!slices.Equal(runtime.Pulls(), c.pulls) {
			t.Errorf("%s: %v, pulled %v", c.name, err, runtime.Pulls())
		}
	}
}

// slow pulls until it is released.
type slow struct {
	*fake.Runtime
	release chan struct{}
}

func (s slow) PullImage(
	ctx context.Context, image string, auth *runtimeapi.AuthConfig, box *runtimeapi.PodSandboxConfig,
) (string, error) {
	select {
	case <-s.release:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	return s.Runtime.PullImage(ctx, image, auth, box)
}

// TestOnePullServesAll: later callers wait for a running pull of the same image, and go on with it
// when its first caller gives up.
func TestOnePullServesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		images := slow{fake.New(), make(chan struct{})}
		p := NewPuller(Config{Images: images, Events: quiet{}, Logger: slog.New(slog.DiscardHandler)})
		errs := make(chan error, 8)
		ensure := func(ctx context.Context) {
			_, err := p.Ensure(ctx, &v1.Pod{}, &v1.Container{Image: "app:1", ImagePullPolicy: v1.PullAlways}, nil)
			errs <- err
		}
		first, cancel := context.WithCancel(context.Background())
		go ensure(first)
		synctest.Wait()
		for range 3 {
			go ensure(context.Background())
		}
		synctest.Wait()
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("the one that left: %v", err)
		}
		synctest.Wait()
		close(images.release)
		for range 3 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if got := images.Pulls(); len(got) != 1 {
			t.Errorf("pulled %v", got)
		}
	})
}

func TestCredentials(t *testing.T) {
	for _, c := range []struct {
		pattern, image string
		want           bool
	}{
		{"docker.io", "nginx", true}, {"https://index.docker.io/v1/", "nginx", true},
		{"reg.example.com", "nginx", false},
		{"reg.example.com", "reg.example.com/a/b:1", true}, {"*.example.com", "reg.example.com/a", true},
		{"*.example.com", "a.b.example.com/a", false},
		{"reg.example.com:5000", "reg.example.com/a", false}, {"reg.example.com/team", "reg.example.com/team/a", true},
		{"reg.example.com/team", "reg.example.com/teams/a", false},
	} {
		if got := patternMatches(c.pattern, c.image); got != c.want {
			t.Errorf("%s for %s: %v", c.pattern, c.image, got)
		}
	}
	auth := base64.StdEncoding.EncodeToString([]byte("me:pass:word"))
	got, err := parseAuths(
		&v1.Secret{Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":{"r":{"auth":"` + auth + `"}}}`)}})
	if err != nil || got["r"].Username != "me" || got["r"].Password != "pass:word" {
		t.Errorf("%+v %v", got, err)
	}
}

func TestCollect(t *testing.T) {
	runtime := fake.New("old:1", "new:1")
	now := time.Unix(0, 0)
	free := uint64(50)
	c := NewCollector(CollectorConfig{Images: runtime, Containers: runtime, Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return now }, Usage: func(string) (uint64, uint64, error) { return 100, free, nil }})
	count := func() int {
		list, err := runtime.ListImages(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if err := c.Collect(context.Background()); err != nil || count() != 2 {
		t.Errorf("with room: %v, %d images", err, count())
	}
	free, now = 10, now.Add(time.Minute)
	if err := c.Collect(context.Background()); err == nil || count() != 2 {
		t.Errorf("images just seen: %v, %d left", err, count())
	}
	now = now.Add(time.Hour)
	if err := c.Collect(context.Background()); err == nil || count() != 0 {
		t.Errorf("when full: %v, %d images", err, count()) // the fakes have no size: all go, and it is still full
	}
}

// mounting is a runtime whose containers have volumes made of images.
type mounting struct {
	*fake.Runtime
	images []string
}

func (m mounting) ListContainers(context.Context, map[string]string) ([]*runtimeapi.Container, error) {
	return []*runtimeapi.Container{{Id: "c", ImageRef: app}}, nil
}

func (m mounting) ContainerStatus(context.Context, string) (*runtimeapi.ContainerStatus, error) {
	var s runtimeapi.ContainerStatus
	for _, name := range m.images {
		s.Mounts = append(s.Mounts, &runtimeapi.Mount{Image: &runtimeapi.ImageSpec{Image: name}})
	}
	return &s, nil
}

// TestRemoveUnused: short of disk, a node keeps used images, those of volumes among them, and those
// that were pulled just now for a container that is starting.
func TestRemoveUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := fake.New(app, "data:1", "old:1")
		c := NewCollector(
			CollectorConfig{Images: runtime, Containers: mounting{runtime, []string{"data:1"}},
				Logger: slog.New(slog.DiscardHandler),
				Usage:  func(string) (uint64, uint64, error) { return 100, 50, nil }})
		left := func() string {
			if err := c.RemoveUnused(t.Context()); err != nil {
				t.Fatal(err)
			}
			list, err := runtime.ListImages(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, image := range list {
				names = append(names, image.Id)
			}
			slices.Sort(names)
			return strings.Join(names, " ")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		synctest.Wait()
		if _, err := runtime.PullImage(ctx, "new:1", nil, nil); err != nil {
			t.Fatal(err)
		}
		if got, want := left(), "data:1 "+app+" new:1"; got != want {
			t.Errorf("at once: %s, want %s", got, want)
		}
		time.Sleep(2 * time.Minute) // virtual
		if got, want := left(), "data:1 "+app; got != want {
			t.Errorf("later: %s, want %s", got, want)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// told keeps the messages of events.
type told struct{ messages []string }

func (t *told) Event(_ *v1.Pod, _ *v1.Container, _, reason, message string) {
	t.messages = append(t.messages, reason+": "+message)
}

// TestPulledTellsTime: the event has the duration of the pull.
func TestPulledTellsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := fake.New()
		runtime.Fail(func(call, _ string) error {
			if call == "PullImage" {
				time.Sleep(1500 * time.Millisecond) // virtual
			}
			return nil
		})
		events := &told{}
		p := NewPuller(Config{Images: runtime, Events: events, Logger: slog.New(slog.DiscardHandler)})
		if _, err := p.Ensure(t.Context(), &v1.Pod{}, &v1.Container{Image: "app:1", ImagePullPolicy: v1.PullAlways},
			nil); err != nil {
			t.Fatal(err)
		}
		if want := `Pulled: Successfully pulled image "app:1" in 1.5s`; !slices.Contains(events.messages, want) {
			t.Errorf("events %q, want %q", events.messages, want)
		}
	})
}

// away does not answer before the end of its caller.
type away struct{ *fake.Runtime }

func (away) ImageStatus(ctx context.Context, _ string) (*runtimeapi.Image, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// loud fails its test on an event.
type loud struct{ t *testing.T }

func (l loud) Event(_ *v1.Pod, _ *v1.Container, kind, reason, message string) {
	l.t.Errorf("event: %s %s %s", kind, reason, message)
}

// TestLossOfInterestIsNoEvent: a pod that is deleted before its image was looked up has not failed.
func TestLossOfInterestIsNoEvent(t *testing.T) {
	p := NewPuller(Config{Images: away{fake.New()}, Events: loud{t}, Logger: slog.New(slog.DiscardHandler)})
	deleted := errors.New("deleted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(deleted)
	if _, err := p.Ensure(ctx, &v1.Pod{}, &v1.Container{Image: "app:1"}, nil); !errors.Is(err, deleted) {
		t.Errorf("ended with %v", err)
	}
}
