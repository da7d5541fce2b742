package verify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Server is a client of one API server.
type Server struct {
	Name   string
	Client kubernetes.Interface
}

// NewServer returns a client with the configuration's credentials and the server's own address.
func NewServer(name, host string, config *rest.Config) (Server, error) {
	own := rest.CopyConfig(config)
	own.Host, own.QPS = host, -1
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		return Server{}, fmt.Errorf("a client of %s: %w", name, err)
	}
	return Server{name, client}, nil
}

const (
	resource = "configmaps"
	// tokenKey is the data key of the token that a write put into an object.
	tokenKey = "token"
	// RunLabel is on all objects of a workload. Its value is the workload's Config.Run.
	RunLabel = "barque.io/verify-run"
)

// objectClient makes single calls. No layer repeats a call, so that each outcome belongs to one
// request.
type objectClient struct {
	server    Server
	namespace string
	run       string
}

func (o objectClient) rest() rest.Interface { return o.server.Client.CoreV1().RESTClient() }

func (o objectClient) object(c *Call) *corev1.ConfigMap {
	m := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name, Labels: map[string]string{RunLabel: o.run}},
		Data:       map[string]string{tokenKey: c.Token},
	}
	if c.Verb == Update {
		m.ResourceVersion = strconv.FormatUint(c.Require, 10)
	}
	return m
}

// do makes the call and stores its outcome in c.
func (o objectClient) do(ctx context.Context, c *Call) {
	c.Server = o.server.Name
	out := new(corev1.ConfigMap)
	var err error
	switch c.Verb {
	case Create:
		err = o.rest().Post().Namespace(o.namespace).Resource(resource).Body(o.object(c)).MaxRetries(0).Do(ctx).Into(
			out)
	case Update:
		err = o.rest().Put().Namespace(o.namespace).Resource(resource).Name(c.Name).Body(o.object(c)).MaxRetries(0).Do(
			ctx).Into(out)
	case Delete:
		revision := strconv.FormatUint(c.Require, 10)
		options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &revision}}
		err = o.rest().Delete().Namespace(o.namespace).Resource(resource).Name(c.Name).Body(options).MaxRetries(0).Do(
			ctx).Error()
	case Get:
		err = o.rest().Get().Namespace(o.namespace).Resource(resource).Name(c.Name).MaxRetries(0).Do(ctx).Into(out)
	case List:
		o.list(ctx, c)
		return
	}
	c.Outcome = outcome(err)
	if err != nil {
		c.Error = err.Error()
	}
	if err != nil || c.Verb == Delete {
		return
	}
	item, err := itemOf(out)
	if err != nil {
		c.Outcome, c.Error = Unknown, err.Error()
		return
	}
	c.Revision = item.Revision
	if c.Verb == Get {
		c.Items = []Item{item}
	}
}

func (o objectClient) list(ctx context.Context, c *Call) {
	out := new(corev1.ConfigMapList)
	err := o.rest().Get().Namespace(o.namespace).Resource(resource).
		VersionedParams(&metav1.ListOptions{LabelSelector: RunLabel + "=" + o.run}, scheme.ParameterCodec).MaxRetries(
		0).Do(ctx).Into(out)
	if err == nil {
		c.Revision, err = strconv.ParseUint(out.ResourceVersion, 10, 64)
	}
	for i := range out.Items {
		item, bad := itemOf(&out.Items[i])
		c.Items, err = append(c.Items, item), errors.Join(err, bad)
	}
	if c.Outcome = outcome(err); err != nil {
		c.Error = err.Error()
	}
}

// watch watches all objects of the run after a revision, for some seconds at most.
func (o objectClient) watch(ctx context.Context, after uint64, seconds int64) (watch.Interface, error) {
	return o.rest().Get().Namespace(o.namespace).Resource(resource).VersionedParams(&metav1.ListOptions{
		Watch: true, AllowWatchBookmarks: true, ResourceVersion: strconv.FormatUint(after, 10),
		TimeoutSeconds: &seconds,
		LabelSelector:  RunLabel + "=" + o.run,
	}, scheme.ParameterCodec).MaxRetries(0).Watch(ctx)
}

func itemOf(m *corev1.ConfigMap) (Item, error) {
	revision, err := strconv.ParseUint(m.ResourceVersion, 10, 64)
	return Item{m.Name, m.Data[tokenKey], revision}, err
}

// outcome classifies an error. An uncertain outcome is Unknown: a 5xx answer may follow the write.
func outcome(err error) Outcome {
	switch {
	case err == nil:
		return Done
	case apierrors.IsAlreadyExists(err):
		return Exists
	case apierrors.IsNotFound(err):
		return Absent
	case apierrors.IsConflict(err):
		return Conflict
	case apierrors.IsTooManyRequests(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err),
		apierrors.IsInvalid(err),
		apierrors.IsBadRequest(err), unconnected(err):
		return Refused
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return Unknown
	}
	// A server that asks the client to retry has not executed the request.
	s := status.Status()
	if s.Code == insufficientStorage ||
		s.Code == http.StatusServiceUnavailable && s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		return Refused
	}
	return Unknown
}

// unconnected reports whether the connection was never established. A host may also become
// unreachable behind an established connection, which may have carried the request.
func unconnected(err error) bool {
	var dial *net.OpError
	if !errors.As(err, &dial) || dial.Op != "dial" {
		return false
	}
	return errors.Is(dial, syscall.ECONNREFUSED) || errors.Is(dial, syscall.EHOSTUNREACH) ||
		errors.Is(dial, syscall.ENETUNREACH)
}

// insufficientStorage is the answer of a store that is full (RFC 4918).
const insufficientStorage = 507
