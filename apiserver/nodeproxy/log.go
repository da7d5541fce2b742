package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	"k8s.io/apiserver/pkg/registry/rest"
)

// PodLog is the storage of pods/log.
func (p *Proxy) PodLog() rest.Storage { return &podLog{p} }

type podLog struct{ *Proxy }

var (
	_ rest.GetterWithOptions = (*podLog)(nil)
	_ rest.StorageMetadata   = (*podLog)(nil)
)

// New implements rest.Storage.
func (*podLog) New() runtime.Object { return &corev1.Pod{} }

// Destroy implements rest.Storage.
func (*podLog) Destroy() {}

// NewGetOptions implements rest.GetterWithOptions.
func (*podLog) NewGetOptions() (runtime.Object, bool, string) {
	return &corev1.PodLogOptions{}, false, ""
}

// ProducesMIMETypes implements rest.StorageMetadata.
func (*podLog) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject implements rest.StorageMetadata.
func (*podLog) ProducesObject(string) any { return "" }

// Get implements rest.GetterWithOptions: it returns a stream of the log.
func (l *podLog) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	opts, ok := options.(*corev1.PodLogOptions)
	if !ok {
		return nil, fmt.Errorf("pods/log was called with options of type %T", options)
	}
	if errs := validateLogOptions(opts); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), name, errs)
	}
	pod, err := l.objects.Pod(ctx, genericapirequest.NamespaceValue(ctx), name)
	if err != nil {
		return nil, err
	}
	container, err := containerOf(pod, opts.Container)
	if err != nil {
		return nil, err
	}
	stream := &logStreamer{genericrest.LocationStreamer{
		ContentType:     "text/plain",
		Flush:           opts.Follow,
		ResponseChecker: genericrest.NewGenericHttpResponseChecker(corev1.Resource("pods/log"), name),
		RedirectChecker: genericrest.PreventRedirects,
	}}
	if pod.Spec.NodeName == "" {
		return stream, nil // not on a node yet, so there is nothing to read: an empty log
	}
	location, node, err := l.kubeletURL(ctx, pod.Spec.NodeName,
		[]string{"containerLogs", pod.Namespace, pod.Name, container}, logQuery(opts))
	if err != nil {
		return nil, err
	}
	stream.Location, stream.Transport = location, l.toKubelet.verified(node)
	if opts.InsecureSkipTLSVerifyBackend {
		stream.Transport = l.toKubelet.unverified(node)
	}
	return stream, nil
}

// logStreamer streams the log from the kubelet.
type logStreamer struct{ genericrest.LocationStreamer }

// InputStream implements rest.ResourceStreamer.
func (s *logStreamer) InputStream(ctx context.Context, version, accept string) (io.ReadCloser, bool, string, error) {
	stream, flush, contentType, err := s.LocationStreamer.InputStream(ctx, version, accept)
	if err == nil && stream != nil {
		stream = &wholeLog{stream, ctx}
	}
	return stream, flush, contentType, err
}

// wholeLog is a log that is copied to a client completely, or fails visibly. Upstream drops the
// error of the copy and ends the response well, so a log whose node was lost looked complete.
type wholeLog struct {
	io.ReadCloser
	ctx context.Context // of the request
}

// WriteTo implements io.WriterTo, which io.Copy prefers, in the goroutine of the request. It breaks
// the response off when the kubelet's is cut. A client by WebSocket reads with Read: its connection
// ends without a closing frame either way.
func (l *wholeLog) WriteTo(w io.Writer) (int64, error) {
	from := &failing{Reader: l.ReadCloser}
	n, err := io.Copy(struct{ io.Writer }{w}, from)
	// A client that has left needs no error. The log of the server would name each one.
	if left := errors.Is(context.Cause(l.ctx), context.Canceled); from.err != nil && !left {
		if buffered, ok := w.(http.Flusher); ok {
			buffered.Flush() // the client gets all that came
		}
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// failing notes the error of its reader.
type failing struct {
	io.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if err != nil && err != io.EOF {
		f.err = err
	}
	return n, err
}

// logQuery returns the kubelet's query parameters for the wanted part of the log.
func logQuery(opts *corev1.PodLogOptions) url.Values {
	query := make(url.Values)
	for name, set := range map[string]bool{"follow": opts.Follow, "previous": opts.Previous,
		"timestamps": opts.Timestamps} {
		if set {
			query.Set(name, "true")
		}
	}
	for name, number := range map[string]*int64{"sinceSeconds": opts.SinceSeconds, "tailLines": opts.TailLines,
		"limitBytes": opts.LimitBytes} {
		if number != nil {
			query.Set(name, strconv.FormatInt(*number, 10))
		}
	}
	if opts.SinceTime != nil {
		query.Set("sinceTime", opts.SinceTime.Format(time.RFC3339))
	}
	if opts.Stream != nil {
		query.Set("stream", *opts.Stream)
	}
	return query
}

func validateLogOptions(opts *corev1.PodLogOptions) field.ErrorList {
	var errs field.ErrorList
	if opts.TailLines != nil && *opts.TailLines < 0 {
		errs = append(errs,
			field.Invalid(field.NewPath("tailLines"), *opts.TailLines, "must be greater than or equal to 0"))
	}
	if opts.LimitBytes != nil && *opts.LimitBytes < 1 {
		errs = append(errs, field.Invalid(field.NewPath("limitBytes"), *opts.LimitBytes, "must be greater than 0"))
	}
	switch {
	case opts.SinceSeconds != nil && opts.SinceTime != nil:
		errs = append(errs,
			field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	case opts.SinceSeconds != nil && *opts.SinceSeconds < 1:
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *opts.SinceSeconds, "must be greater than 0"))
	}
	if opts.Stream == nil {
		return errs
	}
	switch *opts.Stream {
	case corev1.LogStreamAll:
	case corev1.LogStreamStdout, corev1.LogStreamStderr:
		if opts.TailLines != nil {
			errs = append(errs,
				field.Forbidden(field.NewPath(""), "`tailLines` and specific `stream` are mutually exclusive for now"))
		}
	default:
		errs = append(errs, field.NotSupported(field.NewPath("stream"), *opts.Stream,
			[]string{corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr}))
	}
	return errs
}
