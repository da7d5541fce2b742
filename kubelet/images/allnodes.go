package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/barque/barque/internal/answerbody"
)

// ImportPath is the path of a node's own server to which the tar of images is posted.
const ImportPath = "images"

// Imported is the answer.
type Imported struct {
	Images []string `json:"images"` // names
}

// importsAtOnce is the number of nodes that get a tar at the same time. Each tar passes through one
// API server.
const importsAtOnce = 4

// silence is the time after which a node that takes no byte, or that has the whole tar and does not
// answer, is checked by its Node object. After half of it the node is reported as waited for.
const silence = time.Minute

// Progress has callbacks for progress. They are called one at a time.
type Progress struct {
	Done    func(node string, images []string)
	Waiting func(node string) // it has taken nothing for a while
}

// ImportOnAll puts the images of a tar into the runtimes of all nodes, through the API server. open
// is called for each node. The error names the nodes that failed: the other nodes have the images.
// A node that is not Ready gets none, and one that falls silent is given up.
func ImportOnAll(
	ctx context.Context, client corev1client.CoreV1Interface, open func() (io.ReadCloser, error), report Progress,
) error {
	nodes, err := client.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		failed = map[string]error{}
		places = make(chan struct{}, importsAtOnce)
	)
	locked := func(do func()) {
		mu.Lock()
		defer mu.Unlock()
		do()
	}
	for _, node := range nodes.Items {
		if why := notReady(&node); why != nil {
			locked(func() { failed[node.Name] = why })
			continue
		}
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			names, err := importOn(ctx, client, node.Name, open,
				func() { locked(func() { report.Waiting(node.Name) }) })
			locked(func() {
				if err != nil {
					failed[node.Name] = err
					return
				}
				report.Done(node.Name, names)
			})
		})
	}
	all.Wait()
	var errs []error
	for _, node := range nodes.Items {
		if err := failed[node.Name]; err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", node.Name, err))
		}
	}
	return errors.Join(errs...)
}

func importOn(
	ctx context.Context, client corev1client.CoreV1Interface, node string, open func() (io.ReadCloser, error),
	waiting func(),
) ([]string, error) {
	tar, err := open()
	if err != nil {
		return nil, err
	}
	defer tar.Close()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	taken := &moving{Reader: tar, moves: make(chan bool, 1)}
	var watching sync.WaitGroup
	defer watching.Wait()
	defer giveUp(nil)
	watching.Go(func() { // ends with ctx
		if err := taken.watch(ctx, client, node, waiting); err != nil {
			giveUp(err)
		}
	})
	// The client streams only a plain reader.
	result := client.RESTClient().Post().Resource("nodes").Name(node).SubResource("proxy").Suffix(ImportPath).
		SetHeader("Content-Type", "application/x-tar").Body(io.Reader(taken)).Do(ctx)
	body, err := result.Raw()
	if err != nil {
		if why := context.Cause(ctx); errors.Is(why, errSilent) {
			return nil, why
		}
		return nil, said(err, body)
	}
	var answer Imported
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("its answer cannot be read: %w; it may run an earlier version of Barque", err)
	}
	return answer.Images, nil
}

// moving is a tar on its way to a node.
type moving struct {
	io.Reader
	moves chan bool // whether it was the last byte
}

// Read implements io.Reader.
func (m *moving) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	select {
	case m.moves <- err != nil:
	case <-m.moves: // the last move is not yet read
		m.moves <- err != nil
	}
	return n, err
}

// errSilent is wrapped by the error of a node that is given up.
var errSilent = errors.New("it was given up")

// watch returns the reason to give the node up, or nil when ctx ends. A node that has the whole tar
// may take its time while it is Ready.
func (m *moving) watch(ctx context.Context, client corev1client.CoreV1Interface, node string, waiting func()) error {
	whole, told := false, false
	last := time.Now()
	for {
		pause := silence / 2
		select {
		case <-ctx.Done():
			return nil
		case whole = <-m.moves:
			last, told = time.Now(), false
			continue
		case <-time.After(pause):
		}
		if !told {
			told = true
			waiting()
		}
		if time.Since(last) < silence {
			continue
		}
		now, err := client.Nodes().Get(ctx, node, metav1.GetOptions{})
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = notReady(now)
		}
		switch {
		case err != nil:
			return fmt.Errorf("%w, after %s of silence: %w", errSilent, silence, err)
		case !whole:
			return fmt.Errorf("%w: it is Ready, and has taken nothing for %s; its log has the reason", errSilent,
				silence)
		}
	}
}

// unexplained is client-go's message for an answer that it cannot read.
const unexplained = "unknown"

// said returns the node's own message, which client-go keeps among the details, or else the body of
// the answer, which client-go drops when it is no text.
func said(err error, body []byte) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	if _, text := answerbody.Reason(body); status.Status().Message == unexplained && text != "" {
		return fmt.Errorf("the answer has status %d: %s", status.Status().Code, text)
	}
	if status.Status().Details == nil {
		return err
	}
	for _, cause := range status.Status().Details.Causes {
		text := strings.TrimSpace(cause.Message)
		switch {
		case cause.Type != metav1.CauseTypeUnexpectedServerResponse || text == "":
		case apierrors.IsNotFound(err): // the path: a Node that is gone is no unexpected answer
			return errors.New(
				"it runs an earlier version of Barque, which takes no images: run barque image import there")
		default:
			return errors.New(text)
		}
	}
	return err
}

// notReady returns the reason why a node gets no images, or nil.
func notReady(node *corev1.Node) error {
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type != corev1.NodeReady:
		case c.Status == corev1.ConditionTrue:
			return nil
		default:
			return fmt.Errorf("it is not Ready, and gets no images: %s", cmp.Or(c.Message, c.Reason))
		}
	}
	return errors.New("it is not Ready, and gets no images: its kubelet has not reported a state")
}
