package kubelet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/internal/procstat"
	"github.com/barque/barque/kubelet"
	"github.com/barque/barque/kubelet/containerd"
)

// A kubelet that can be killed is a process of its own. It reaches the test's API server in memory
// over HTTP, and the runtime through a relay, which intercepts its calls.

// killable is the command line of such a process: this word, and a killableConfig as JSON.
const killable = "kubelet-that-is-killed"

type killableConfig struct {
	API, Runtime, RootDir, LogDir, CgroupRoot string
}

// runKillable is the body of the process.
func runKillable(raw string) error {
	var c killableConfig
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: c.API, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: kruntime.ContentTypeJSON,
			AcceptContentTypes: kruntime.ContentTypeJSON}})
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	k, err := kubelet.New(kubelet.Config{
		Pods: factory.Core().V1().Pods().Informer(), NodeName: nodeName,
		NodeIPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Client: client,
		RuntimeEndpoint: c.Runtime, RootDir: c.RootDir, LogDir: c.LogDir, CgroupRoot: c.CgroupRoot,
		ClusterDomain: "cluster.local", Version: "v1.37.2+barque",
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	return k.Run(ctx)
}

// victim keeps a kubelet running, however often it is killed.
type victim struct {
	config killableConfig

	mu      sync.Mutex
	process *os.Process
	ended   chan struct{} // closed when process has ended
	over    bool
	done    sync.WaitGroup
}

func startVictim(t *testing.T, c killableConfig) *victim {
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{config: c}
	first := make(chan error, 1)
	v.done.Go(func() { // ends with stop
		runtime.LockOSThread() // the signal comes when the thread ends that has started the process
		for {
			command := exec.Command("/proc/self/exe", killable, string(raw))
			command.Stderr = os.Stderr
			command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			v.mu.Lock()
			if v.over {
				v.mu.Unlock()
				return
			}
			err := command.Start()
			if err == nil {
				v.process, v.ended = command.Process, make(chan struct{})
			}
			v.mu.Unlock()
			select {
			case first <- err:
			default:
			}
			if err != nil {
				return
			}
			_ = command.Wait() // it is killed
			close(v.ended)
		}
	})
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.stop)
	return v
}

// kill returns when nothing of the process is left. Another one is started.
func (v *victim) kill() {
	v.mu.Lock()
	process, ended := v.process, v.ended
	v.mu.Unlock()
	_ = process.Kill() // it may have ended
	<-ended
}

func (v *victim) stop() {
	v.mu.Lock()
	v.over = true
	v.mu.Unlock()
	v.kill()
	v.done.Wait()
}

// killContainerd returns when containerd has ended. Its supervisor starts another one.
func (f *fixture) killContainerd() error {
	all, err := procstat.All()
	if err != nil {
		return err
	}
	for _, pid := range all {
		args, err := procstat.Args(pid)
		if err != nil || !slices.Contains(args, containerd.Command) ||
			!slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, f.dataDir+"/") }) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		for {
			if stat, err := procstat.Read(pid); err != nil || !stat.Runs() {
				break
			}
			runtime.Gosched()
		}
	}
	return nil
}

// relay passes calls to the runtime, and runs a function at one of them.
type relay struct {
	conn *grpc.ClientConn

	mu     sync.Mutex
	method string
	at     moment
	armed  func() bool
}

// moment is a point in time of a call.
type moment int

const (
	before moment = iota // the runtime has not received it
	during               // the runtime works on it
	after                // the runtime has answered, and the kubelet has no answer yet
)

func (m moment) String() string { return [...]string{"before", "during", "after"}[m] }

// frame is a message as it is on the wire.
type frame struct{ data []byte }

type frames struct{}

func (frames) Marshal(v any) ([]byte, error)      { return v.(*frame).data, nil }
func (frames) Unmarshal(data []byte, v any) error { v.(*frame).data = slices.Clone(data); return nil }
func (frames) Name() string                       { return "proto" }

// startRelay listens beside the runtime's socket, and returns where.
func startRelay(t *testing.T, dir, runtimeSocket string) (*relay, string) {
	conn, err := grpc.NewClient("unix://"+strings.TrimPrefix(runtimeSocket, "unix://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(frames{}), grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "r.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{conn: conn}
	server := grpc.NewServer(grpc.ForceServerCodec(frames{}), grpc.UnknownServiceHandler(r.handle))
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }() // until it is stopped
	t.Cleanup(func() {
		server.Stop()
		<-served
		conn.Close()
	})
	return r, "unix://" + path
}

// arm has f called once, at a moment of the next call of a method. f reports whether the
// caller is gone.
func (r *relay) arm(method string, at moment, f func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.method, r.at, r.armed = method, at, f
}

// set returns the function for a moment of a call, or nil.
func (r *relay) set(method string, at moment) func() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.armed == nil || r.method != method || r.at != at {
		return nil
	}
	f := r.armed
	r.armed = nil
	return f
}

func (r *relay) handle(_ any, in grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(in)
	method := full[strings.LastIndex(full, "/")+1:]
	request := &frame{}
	if err := in.RecvMsg(request); err != nil {
		return err
	}
	if f := r.set(method, before); f != nil && f() {
		<-in.Context().Done()
		return status.FromContextError(in.Context().Err()).Err()
	}
	// The runtime goes on with a call that it has received when the caller dies.
	ctx, cancel := context.WithCancel(context.WithoutCancel(in.Context()))
	defer cancel()
	if md, ok := metadata.FromIncomingContext(in.Context()); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	if strings.HasPrefix(method, "GetContainerEvents") {
		stop := context.AfterFunc(in.Context(), cancel)
		defer stop()
	}
	out, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, full)
	if err != nil {
		return err
	}
	if err := errors.Join(out.SendMsg(request), out.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if f := r.set(method, during); f != nil {
		f()
	}
	for {
		answer := &frame{}
		if err := out.RecvMsg(answer); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if f := r.set(method, after); f != nil && f() {
			<-in.Context().Done()
		}
		if err := in.SendMsg(answer); err != nil {
			return status.Error(codes.Canceled, err.Error())
		}
	}
}

// kindOf has the kinds of the resources that a kubelet lists.
var kindOf = map[string]string{"pods": "Pod", "nodes": "Node", "csidrivers": "CSIDriver",
	"resourceslices": "ResourceSlice"}

// serveAPI serves the objects in memory over HTTP: as much of an API server as a kubelet needs.
func serveAPI(t *testing.T, api *fake.Clientset) (url string) {
	ctx, cancel := context.WithCancel(context.Background())
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := parse(r)
		if err == nil && r.URL.Query().Get("watch") != "" {
			err = q.watch(ctx, api, w, r)
			if err == nil {
				return
			}
		}
		var obj kruntime.Object
		if err == nil {
			obj, err = q.do(api, r)
		}
		code := http.StatusOK
		if err != nil {
			var known apierrors.APIStatus
			if !errors.As(err, &known) {
				known = apierrors.NewInternalError(err)
			}
			answer := known.Status()
			obj, code, q.version = &answer, int(answer.Code), schema.GroupVersion{Version: "v1"}
		}
		w.Header().Set("Content-Type", kruntime.ContentTypeJSON)
		w.WriteHeader(code)
		_ = scheme.Codecs.LegacyCodec(q.version).Encode(obj, w) // the client may be gone
	}))
	server.Start()
	t.Cleanup(func() { cancel(); server.CloseClientConnections(); server.Close() })
	return server.URL
}

// query is a parsed request.
type query struct {
	version                            schema.GroupVersion
	resource, namespace, name, subpart string
}

func parse(r *http.Request) (q query, err error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		q.version, parts = schema.GroupVersion{Version: parts[1]}, parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		q.version, parts = schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	default:
		return q, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path)
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		q.namespace, parts = parts[1], parts[2:]
	}
	parts = append(parts, "", "")
	q.resource, q.name, q.subpart = parts[0], parts[1], parts[2]
	return q, nil
}

func (q query) group() schema.GroupVersionResource { return q.version.WithResource(q.resource) }

func (q query) list(api *fake.Clientset) (kruntime.Object, error) {
	kind, ok := kindOf[q.resource]
	if !ok {
		return nil, apierrors.NewNotFound(q.group().GroupResource(), "")
	}
	list, err := scheme.Scheme.New(q.version.WithKind(kind + "List"))
	if err != nil {
		return nil, err
	}
	return api.Invokes(
		clienttesting.NewListActionWithOptions(q.group(), q.version.WithKind(kind), q.namespace, metav1.ListOptions{}),
		list)
}

// do serves all requests but watches.
func (q query) do(api *fake.Clientset, r *http.Request) (kruntime.Object, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	object := func() (kruntime.Object, error) { return kruntime.Decode(scheme.Codecs.UniversalDeserializer(), body) }
	nothing := &metav1.Status{Status: metav1.StatusSuccess}
	switch {
	case r.Method == http.MethodGet && q.name == "":
		return q.list(api)
	case r.Method == http.MethodGet:
		return api.Invokes(clienttesting.NewGetSubresourceAction(q.group(), q.namespace, q.subpart, q.name), &v1.Pod{})
	case r.Method == http.MethodPost:
		obj, err := object()
		if err != nil {
			return nil, err
		}
		return api.Invokes(clienttesting.NewCreateSubresourceAction(q.group(), q.name, q.subpart, q.namespace, obj),
			obj)
	case r.Method == http.MethodPut:
		obj, err := object()
		if err != nil {
			return nil, err
		}
		return api.Invokes(clienttesting.NewUpdateSubresourceAction(q.group(), q.subpart, q.namespace, obj), obj)
	case r.Method == http.MethodPatch:
		kind := types.PatchType(r.Header.Get("Content-Type"))
		return api.Invokes(
			clienttesting.NewPatchSubresourceAction(q.group(), q.namespace, q.name, kind, body, q.subpart), &v1.Pod{})
	case r.Method == http.MethodDelete && q.name == "":
		_, err := api.Invokes(clienttesting.NewDeleteCollectionAction(q.group(), q.namespace, metav1.ListOptions{}),
			nothing)
		return nothing, err
	case r.Method == http.MethodDelete:
		_, err := api.Invokes(clienttesting.NewDeleteAction(q.group(), q.namespace, q.name), &v1.Pod{})
		return nothing, err
	}
	return nil, apierrors.NewMethodNotSupported(q.group().GroupResource(), r.Method)
}

// watch sends the existing objects first, so that nothing is missed between a list and a watch.
func (q query) watch(ctx context.Context, api *fake.Clientset, w http.ResponseWriter, r *http.Request) error {
	if r.URL.Query().Get("sendInitialEvents") != "" {
		// the client lists instead
		return apierrors.NewInvalid(q.version.WithKind(kindOf[q.resource]).GroupKind(), "", nil)
	}
	follow, err := api.InvokesWatch(
		clienttesting.NewWatchActionWithOptions(q.group(), q.namespace, metav1.ListOptions{}))
	if err != nil {
		return err
	}
	defer follow.Stop()
	list, err := q.list(api)
	if err != nil {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", kruntime.ContentTypeJSON)
	tell := func(e watch.Event) error {
		raw, err := kruntime.Encode(scheme.Codecs.LegacyCodec(q.version), e.Object)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(w).Encode(
			metav1.WatchEvent{Type: string(e.Type), Object: kruntime.RawExtension{Raw: raw}}); err != nil {
			return err
		}
		w.(http.Flusher).Flush()
		return nil
	}
	for _, item := range items {
		if err := tell(watch.Event{Type: watch.Added, Object: item}); err != nil {
			return fmt.Errorf("tell of what is there: %w", err)
		}
	}
	w.(http.Flusher).Flush()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.Context().Done():
			return nil
		case e, ok := <-follow.ResultChan():
			if !ok || tell(e) != nil {
				return nil // the client starts a new watch
			}
		}
	}
}
