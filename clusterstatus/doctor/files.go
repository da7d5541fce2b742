package doctor

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/devcluster"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/redact"
	"github.com/barque/barque/internal/terminal"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/network/faults"
)

const (
	// journalPatience bounds the reading of this machine's journal.
	journalPatience = 5 * time.Second
	maxEvents       = 1000
)

// apiFiles returns data of the API for the archive, and the objects for the findings on workloads.
// Objects appear in the archive by their events and states, without their contents, which may have
// secrets. Each kind has a timeout: without a quorum there is no answer. unread is the reason why
// the objects are incomplete.
func apiFiles(
	ctx context.Context, config *rest.Config, each time.Duration,
) (files map[string]string, o objects, unread error) {
	files = map[string]string{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		files["api.txt"] = err.Error()
		return files, o, err
	}
	core := client.CoreV1()
	var nodes []corev1.Node
	var mu sync.Mutex
	var asking sync.WaitGroup
	read := func(name string, list func(ctx context.Context) error, text func() (string, error)) {
		asking.Go(func() { // ends with the answer, or after each
			ctx, cancel := context.WithTimeoutCause(ctx, each, &remote.NoAnswerError{Within: each})
			defer cancel()
			err := list(ctx)
			content := ""
			if err == nil {
				content, err = text()
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				err = remote.Because(ctx, err)
				unread = errors.Join(unread, fmt.Errorf("%s: %w", name, err))
				content = "not known: " + err.Error() + "\n"
			}
			files[name] = cmp.Or(content, "none\n")
		})
	}
	read("nodes.json", func(ctx context.Context) (err error) {
		nodes, err = pages(ctx, func(ctx context.Context, options metav1.ListOptions) ([]corev1.Node, string, error) {
			l, err := core.Nodes().List(ctx, options)
			return l.Items, l.Continue, err
		})
		return err
	}, func() (string, error) { return nodesText(nodes) })
	read("events.txt", func(ctx context.Context) (err error) {
		o.events, err = pages(ctx,
			func(ctx context.Context, options metav1.ListOptions) ([]corev1.Event, string, error) {
				l, err := core.Events(metav1.NamespaceAll).List(ctx, options)
				return l.Items, l.Continue, err
			})
		return err
	}, func() (string, error) { return eventsText(o.events), nil })
	read("pods.txt", func(ctx context.Context) (err error) {
		o.pods, err = pages(ctx, func(ctx context.Context, options metav1.ListOptions) ([]corev1.Pod, string, error) {
			l, err := core.Pods(metav1.NamespaceAll).List(ctx, options)
			return l.Items, l.Continue, err
		})
		return err
	}, func() (string, error) { return podsText(o.pods), nil })
	read("namespaces.txt", func(ctx context.Context) (err error) {
		o.namespaces, err = pages(ctx,
			func(ctx context.Context, options metav1.ListOptions) ([]corev1.Namespace, string, error) {
				l, err := core.Namespaces().List(ctx, options)
				return l.Items, l.Continue, err
			})
		return err
	}, func() (string, error) { return namespacesText(o.namespaces), nil })
	asking.Wait()
	return files, o, unread
}

// pageSize bounds the objects of one answer, so that a large cluster keeps serving meanwhile.
const pageSize = 500

// pages lists all objects of a kind.
func pages[T any](
	ctx context.Context, list func(context.Context, metav1.ListOptions) (items []T, next string, err error),
) (all []T, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		items, next, err := list(ctx, options)
		if err != nil {
			return all, err
		}
		if all, options.Continue = append(all, items...), next; next == "" {
			return all, nil
		}
	}
}

func nodesText(nodes []corev1.Node) (string, error) {
	for i := range nodes {
		nodes[i].ManagedFields, nodes[i].Annotations = nil, nil // people write these
		nodes[i].Status.Images = nil
	}
	data, err := json.MarshalIndent(nodes, "", "  ")
	return string(data), err
}

// eventsText returns the newest events.
func eventsText(events []corev1.Event) string {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return faults.At(&a).Compare(faults.At(&b)) })
	var out strings.Builder
	for _, e := range events[max(0, len(events)-maxEvents):] {
		fmt.Fprintf(&out, "%s %s %s %s/%s x%d: %s\n", faults.At(&e).UTC().Format(time.RFC3339), e.Type, e.Reason,
			e.InvolvedObject.Kind, e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, max(1, e.Count), e.Message)
	}
	return out.String()
}

func podsText(pods []corev1.Pod) string {
	var out strings.Builder
	for _, p := range pods {
		ready, restarts := 0, int32(0)
		for _, s := range p.Status.ContainerStatuses {
			restarts += s.RestartCount
			if s.Ready {
				ready++
			}
		}
		fmt.Fprintf(&out, "%s/%s node=%s phase=%s reason=%q ready=%d/%d restarts=%d deleted=%t\n", p.Namespace, p.Name,
			p.Spec.NodeName, p.Status.Phase, p.Status.Reason,
			ready, len(p.Spec.Containers), restarts, p.DeletionTimestamp != nil)
	}
	return out.String()
}

func namespacesText(namespaces []corev1.Namespace) string {
	var out strings.Builder
	for _, ns := range namespaces {
		fmt.Fprintf(&out, "%s phase=%s finalizers=%v\n", ns.Name, ns.Status.Phase,
			append(slices.Clone(ns.Finalizers), finalizerNames(ns.Spec.Finalizers)...))
	}
	return out.String()
}

func finalizerNames(all []corev1.FinalizerName) (names []string) {
	for _, f := range all {
		names = append(names, string(f))
	}
	return names
}

// localFiles returns this machine's data, all of which help if it is a server's.
func localFiles(ctx context.Context, dataDir string, checks []check.Finding) map[string]string {
	files := map[string]string{}
	for name, text := range adminapi.MachineFacts(dataDir, checks) {
		files["this-machine/"+name] = text
	}
	ctx, cancel := context.WithTimeout(ctx, journalPatience)
	defer cancel()
	journal := exec.CommandContext(ctx, "journalctl", "--no-pager", "-n", "5000", "-u", "barque-server", "-u",
		"barque-agent")
	text, err := journal.CombinedOutput()
	if err != nil {
		text = fmt.Appendf(text, "not known: %v\n", err) // as without systemd
	}
	files["this-machine/journal.txt"] = string(text)
	return files
}

// maxLog is how much of the end of a node's log is taken, as of a server that answers.
const maxLog = 2 << 20

// devNodes adds data from the directories of a dev cluster's nodes without a diagnosis. It adds
// nothing for other clusters.
func (e *Examination) devNodes(dir string) error {
	if dir == "" {
		return nil
	}
	s, err := devcluster.Inspect(dir)
	if err != nil {
		return err
	}
	for _, n := range s.Nodes {
		if slices.ContainsFunc(e.Servers, func(d clusterstatus.Diagnosis) bool { return d.Server == n.Name }) {
			continue
		}
		text, err := endOf(filepath.Join(dir, n.Name+".log"), maxLog)
		if err != nil {
			text = "not known: " + err.Error() + "\n"
		}
		e.files["this-machine/"+n.Name+"/log.txt"] = text
		e.files["this-machine/"+n.Name+"/files.txt"] = adminapi.FileSizes(filepath.Join(dir, n.Name))
	}
	return nil
}

// endOf returns the last lines of a file, of at most that many bytes.
func endOf(path string, most int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	from := max(0, info.Size()-most)
	data, err := io.ReadAll(io.NewSectionReader(f, from, most))
	if err != nil {
		return "", err
	}
	text := string(data)
	if from > 0 {
		_, text, _ = strings.Cut(text, "\n")
	}
	return text, nil
}

// save writes everything into one file, which is there as a whole or not at all, for its owner
// only.
func (e *Examination) save(path string) (err error) {
	tmp, err := os.OpenFile(path+".unfinished", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	if err := errors.Join(e.pack(tmp), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// pack writes the archive. All text passes a last filter for secrets here, whatever its source.
func (e *Examination) pack(to *os.File) error {
	zipped := gzip.NewWriter(to)
	archive := tar.NewWriter(zipped)
	clean := redact.New()
	top := strings.TrimSuffix(filepath.Base(to.Name()), ".tar.gz.unfinished")
	put := func(name, text string) error {
		if filepath.Base(name) != "metrics.txt" { // numbers
			text = clean.Text(text)
		}
		head := &tar.Header{Name: top + "/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: e.Time}
		if err := archive.WriteHeader(head); err != nil {
			return err
		}
		_, err := archive.Write([]byte(text))
		return err
	}
	err := put("findings.txt", e.findingsText())
	err = errors.Join(err,
		put("about.txt", fmt.Sprintf("made at %s by barque %s\n", e.Time.Format(time.RFC3339), version.String())))
	data, jsonErr := json.MarshalIndent(e, "", "  ")
	err = errors.Join(err, jsonErr, put("examination.json", string(data)))
	for _, name := range sortedKeys(e.files) {
		err = errors.Join(err, put(name, e.files[name]))
	}
	for _, d := range e.Servers {
		for _, name := range sortedKeys(d.Files) {
			err = errors.Join(err, put("servers/"+d.Server+"/"+name, d.Files[name]))
		}
	}
	return errors.Join(err, archive.Close(), zipped.Close())
}

func (e *Examination) findingsText() string {
	var out strings.Builder
	for _, w := range e.Findings {
		fmt.Fprintln(&out, w)
	}
	if len(e.Findings) == 0 {
		fmt.Fprintln(&out, "nothing is found to be wrong")
	}
	for _, note := range e.Notes {
		fmt.Fprintln(&out, "note: "+note)
	}
	if e.Status != nil {
		fmt.Fprintln(&out)
		if err := clusterstatus.WriteStatus(&out, terminal.Screen{}, e.Status); err != nil {
			fmt.Fprintln(&out, err)
		}
	}
	return out.String()
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
