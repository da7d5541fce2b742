package images_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/kubelet/images"
)

// Each node gets the whole tar. A node that fails does not affect the others, and its own message
// reaches the user.
func TestImportOnAll(t *testing.T) {
	tar := bytes.Repeat([]byte("image"), 1<<20)
	answers := map[string]func(w http.ResponseWriter){
		"s1": func(w http.ResponseWriter) {
			json.NewEncoder(w).Encode(images.Imported{Images: []string{"app:1", "app:2"}})
		},
		"a1": func(w http.ResponseWriter) { json.NewEncoder(w).Encode(images.Imported{Images: []string{"app:1"}}) },
		"a2": func(w http.ResponseWriter) { http.Error(w, "node a2 uses another runtime", http.StatusNotImplemented) },
		"a3": func(w http.ResponseWriter) { http.Error(w, "404 page not found", http.StatusNotFound) },
		"a4": func(w http.ResponseWriter) { http.Error(w, "no space left on device", http.StatusUnprocessableEntity) },
	}
	var mu sync.Mutex
	got := map[string]int{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes", func(w http.ResponseWriter, _ *http.Request) {
		var list corev1.NodeList
		for _, name := range []string{"s1", "a1", "a2", "a3", "a4", "a5", "a6"} {
			node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			switch name {
			case "a5":
				node.Status.Conditions = []corev1.NodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionUnknown,
						Message: "the node has not been heard of"}}
			case "a6":
				node.Status.Conditions = nil
			}
			list.Items = append(list.Items, node)
		}
		list.Kind, list.APIVersion = "NodeList", "v1"
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(list)
	})
	mux.HandleFunc("POST /api/v1/nodes/{name}/proxy/images", func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Equal(data, tar) {
			t.Errorf("%s got %d bytes, %v", r.PathValue("name"), len(data), err)
		}
		mu.Lock()
		got[r.PathValue("name")]++
		mu.Unlock()
		answers[r.PathValue("name")](w)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	err = images.ImportOnAll(t.Context(), client.CoreV1(),
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(tar)), nil },
		images.Progress{
			Done: func(node string, names []string) { told = append(told, node+" "+strings.Join(names, ",")) }})
	if slices.Sort(told); !slices.Equal(told, []string{"a1 app:1", "s1 app:1,app:2"}) {
		t.Errorf("told %v", told)
	}
	want := "node a2: node a2 uses another runtime\n" +
		"node a3: it runs an earlier version of Barque, which takes no images: run barque image import there\n" +
		"node a4: no space left on device\n" +
		"node a5: it is not Ready, and gets no images: the node has not been heard of\n" +
		"node a6: it is not Ready, and gets no images: its kubelet has not reported a state"
	if err == nil || err.Error() != want {
		t.Errorf("error %v\nwant %s", err, want)
	}
	for name, n := range got {
		if n != 1 {
			t.Errorf("%s got the tar %d times", name, n)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := images.ImportOnAll(ctx, client.CoreV1(), nil, images.Progress{}); err == nil {
		t.Error("no error after the end of the context")
	}
}
