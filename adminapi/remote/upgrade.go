package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/upgrade"
	"github.com/barque/barque/upgrade/part"
	"github.com/barque/barque/upgrade/release"
)

// Upgrading makes an upgrade of a cluster from outside.
type Upgrading struct {
	Config *rest.Config
	Spec   upgrade.Spec
	// Tell gets a line about each step, and Progress counts the bytes of an archive.
	Tell     func(text string)
	Progress func(name string) func(total int64) io.Writer
}

// Architectures returns those of the cluster's nodes.
func (u *Upgrading) Architectures(ctx context.Context) (map[string]bool, error) {
	client, err := dynamic.NewForConfig(Reaching(u.Config, Timeout))
	if err != nil {
		return nil, err
	}
	nodes, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).List(ctx,
		metav1.ListOptions{})
	if err != nil {
		return nil, WithAdvice(u.Config, err)
	}
	out := map[string]bool{}
	for _, n := range nodes.Items {
		arch, _, err := unstructured.NestedString(n.Object, "status", "nodeInfo", "architecture")
		if err == nil && arch != "" {
			out[arch] = true
		}
	}
	return out, nil
}

// Preview returns the plan by a cluster's status.
func (u *Upgrading) Preview(s *clusterstatus.ClusterStatus) upgrade.Preview {
	var nodes []upgrade.NodeSeen
	for _, m := range s.Members {
		nodes = append(nodes, upgrade.NodeSeen{Name: m.Name, Role: m.Role, Version: m.Version,
			Alive: m.Lives()})
	}
	p := upgrade.PreviewOf(u.Spec, nodes, s.Leader)
	if s.Quorum.Answering < s.Quorum.Voters {
		p.Refused = fmt.Sprintf("%d of %d voters answer", s.Quorum.Answering, s.Quorum.Voters)
	}
	for _, w := range s.Warnings {
		if w.Severity == clusterstatus.Critical && p.Refused == "" {
			p.Refused = "the cluster is not well: " + w.Text
		} else {
			p.Notes = append(p.Notes, w.Text)
		}
	}
	return p
}

const (
	// partBytes is how much of an archive goes in one request.
	partBytes = 8 << 20
	// uploadTries is how often an interrupted upload is taken up again.
	uploadTries = 20
	uploadPause = time.Second
	uploadLimit = 10 * time.Minute
)

// Upload brings a release to a server. It goes on where an interrupted one has ended.
func (u *Upgrading) Upload(ctx context.Context, l *release.Local) (*part.Offered, error) {
	httpClient, err := rest.HTTPClientFor(Reaching(u.Config, 0))
	if err != nil {
		return nil, err
	}
	defer httpClient.CloseIdleConnections()
	offer, err := json.Marshal(part.Offer{Sums: l.Sums, Signature: l.Signature, Unsigned: u.Spec.Unsigned,
		Names: l.Names()})
	if err != nil {
		return nil, err
	}
	var last error
	for try := range uploadTries {
		if try > 0 {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(uploadPause):
			}
		}
		var offered part.Offered
		if last = u.send(ctx, httpClient, http.MethodPost, nil, bytes.NewReader(offer), &offered); last != nil {
			var refused *RefusalError
			if errors.As(last, &refused) && refused.Status != http.StatusServiceUnavailable {
				return nil, &exitcode.Error{Code: exitcode.Refused,
					Err: fmt.Errorf("nothing was changed: %w", WithAdvice(u.Config, last))}
			}
			continue
		}
		if len(offered.Missing) == 0 {
			return &offered, nil
		}
		for _, name := range offered.Missing {
			if last = u.bring(ctx, httpClient, &offered, name, l.Paths[name]); last != nil {
				break
			}
		}
	}
	return nil, fmt.Errorf("bring the release to a server: %w", WithAdvice(u.Config, last))
}

// bring sends the rest of an archive.
func (u *Upgrading) bring(ctx context.Context, client *http.Client, to *part.Offered, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	offset := to.Have[name]
	if offset >= info.Size() { // of another build, or damaged on its way
		offset = 0
	}
	progress := u.Progress(name)(info.Size())
	for offset < info.Size() {
		n := min(partBytes, info.Size()-offset)
		query := url.Values{"version": {to.Version}, "name": {name}, "on": {to.Server},
			"offset": {strconv.FormatInt(offset, 10)}}
		body := io.TeeReader(io.NewSectionReader(f, offset, n), progress)
		if err := u.send(ctx, client, http.MethodPut, query, body, nil); err != nil {
			return err
		}
		offset += n
	}
	return nil
}

func (u *Upgrading) send(
	ctx context.Context, client *http.Client, method string, query url.Values, body io.Reader, into any,
) error {
	ctx, cancel := context.WithTimeout(ctx, uploadLimit)
	defer cancel()
	address, _, err := rest.DefaultServerURL(u.Config.Host, "", schema.GroupVersion{}, true)
	if err != nil {
		return err
	}
	address.Path, address.RawQuery = part.FilesPath, query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, address.String(), body)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNoContent {
		return nil
	}
	if err := refusal(response); err != nil || into == nil {
		return err
	}
	return json.NewDecoder(response.Body).Decode(into)
}

// Begin creates the Upgrade, or goes on with the one that is there.
func (u *Upgrading) Begin(ctx context.Context) (*upgrade.Object, error) {
	client, err := dynamic.NewForConfig(Reaching(u.Config, Timeout))
	if err != nil {
		return nil, err
	}
	upgrades := client.Resource(upgrade.Resource)
	name := upgrade.NameOf(u.Spec.Version)
	have, err := u.Get(ctx)
	if err == nil && have.Spec.Checksum != u.Spec.Checksum {
		if !have.Status.Phase.Ended() {
			return nil, &exitcode.Error{Code: exitcode.Refused,
				Err: fmt.Errorf("the upgrade to another build of version %s is under way: %s; `barque kubectl delete upgrade %s` gives it up",
					u.Spec.Version, have.Text(), name)}
		}
		if err := upgrades.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return nil, WithAdvice(u.Config, err)
		}
		err = apierrors.NewNotFound(upgrade.Resource.GroupResource(), name)
	}
	if apierrors.IsNotFound(err) {
		made, err := upgrade.New(u.Spec).Unstructured()
		if err != nil {
			return nil, err
		}
		delete(made.Object, "status")
		if made, err = upgrades.Create(ctx, made, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("create the Upgrade %s: %w", name, Outcome(err, "the same command again goes on"))
		}
		return upgrade.Read(made)
	}
	if err != nil {
		return nil, err
	}
	spec := u.Spec
	spec.Attempt = have.Spec.Attempt
	if have.Status.Phase.Ended() {
		spec.Attempt = max(have.Spec.Attempt, have.Status.Attempt) + 1
	}
	have.Spec = spec
	changed, err := have.Unstructured()
	if err != nil {
		return nil, err
	}
	if changed, err = upgrades.Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("change the Upgrade %s: %w", name, Outcome(err, "the same command again goes on"))
	}
	return upgrade.Read(changed)
}

// Get returns the Upgrade.
func (u *Upgrading) Get(ctx context.Context) (*upgrade.Object, error) {
	client, err := dynamic.NewForConfig(Reaching(u.Config, Timeout))
	if err != nil {
		return nil, err
	}
	have, err := client.Resource(upgrade.Resource).Get(ctx, upgrade.NameOf(u.Spec.Version), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return upgrade.Read(have)
}

// followEvery is how often a command that waits asks how far an upgrade is.
const followEvery = time.Second

// Await waits for the end of an upgrade, or of its next pause, and tells each step.
func (u *Upgrading) Await(ctx context.Context, o *upgrade.Object, wait time.Duration) (*upgrade.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	told := ""
	for {
		s := &o.Status
		if text := o.Text(); text != told && s.Phase != "" {
			told = text
			u.Tell(text)
		}
		switch {
		case o.Spec.Attempt > s.Attempt && s.Phase.Ended(): // the leader has not seen it yet
		case s.Phase == upgrade.Complete, s.Phase == upgrade.Paused && o.Paused():
			return o, nil
		case s.Phase.Ended():
			return o, fmt.Errorf("the upgrade to version %s has stopped: %s; the same command again goes on with it",
				o.Spec.Version, s.Message)
		}
		select {
		case <-ctx.Done():
			return o, &exitcode.Error{Code: exitcode.Unfinished,
				Err: fmt.Errorf("the upgrade is under way (%s). It goes on by itself; `barque cluster status` shows it",
					o.Text())}
		case <-time.After(followEvery):
		}
		if next, err := u.Get(ctx); err == nil {
			o = next
		} else if apierrors.IsNotFound(err) {
			return o, errors.New("the upgrade was given up: its object is gone")
		}
		// A server that does not answer may be the one that restarts.
	}
}
