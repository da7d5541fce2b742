package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// ImportPath is the path of a node's own server to which the tar of images is posted.
const ImportPath = "images"

// Imported is the answer.
type Imported struct {
	Images []string `json:"images"` // names
}

// importsAtOnce is the number of nodes that get a tar at the same time. Each has a copy of its own
// on the way, through one API server.
const importsAtOnce = 4

// ImportOnAll puts the images of a tar into the runtimes of all nodes, through the API server. Each
// node gets what open returns. Results are told one at a time, as they come. The error names the
// nodes that failed: the other nodes have the images.
func ImportOnAll(ctx context.Context, client corev1client.CoreV1Interface, open func() (io.ReadCloser, error), tell func(node string, images []string)) error {
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
	for _, node := range nodes.Items {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			names, err := importOn(ctx, client, node.Name, open)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[node.Name] = err
				return
			}
			tell(node.Name, names)
		})
	}
	all.Wait()
	var errs []error
	for _, node := range nodes.Items {
		if err := failed[node.Name]; err != nil {
			errs = append(errs, fmt.Errorf("node %s%s: %w", node.Name, notReady(&node), err))
		}
	}
	return errors.Join(errs...)
}

func importOn(ctx context.Context, client corev1client.CoreV1Interface, node string, open func() (io.ReadCloser, error)) ([]string, error) {
	tar, err := open()
	if err != nil {
		return nil, err
	}
	defer tar.Close()
	// Only a plain reader is sent as it comes.
	result := client.RESTClient().Post().Resource("nodes").Name(node).SubResource("proxy").Suffix(ImportPath).
		SetHeader("Content-Type", "application/x-tar").Body(io.Reader(tar)).Do(ctx)
	body, err := result.Raw()
	if err != nil {
		return nil, said(err)
	}
	var answer Imported
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("its answer cannot be read: %w; it may run an earlier version of Barque", err)
	}
	return answer.Images, nil
}

// said returns the node's own words, which client-go keeps among the details.
func said(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return err
	}
	for _, cause := range status.Status().Details.Causes {
		text := strings.TrimSpace(cause.Message)
		switch {
		case cause.Type != metav1.CauseTypeUnexpectedServerResponse || text == "":
		case apierrors.IsNotFound(err): // the path: a Node that is gone is no unexpected answer
			return errors.New("it runs an earlier version of Barque, which takes no images: run barque image import there")
		default:
			return errors.New(text)
		}
	}
	return err
}

func notReady(node *corev1.Node) string {
	ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	if ready {
		return ""
	}
	return " (not Ready)"
}
