package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/raftstore"
)

// floats is a definition of objects that may have any field, that are pruned, and that get
// defaults: by version, of which one is stored.
const floats = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: floats.sea.example.com}
spec:
  group: sea.example.com
  scope: Namespaced
  names: {plural: floats, singular: float, kind: Float, listKind: FloatList}
  versions:
  - name: v1
    served: true
    storage: true
    selectableFields: [{jsonPath: .spec.port}]
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          any: {x-kubernetes-preserve-unknown-fields: true}
          data: {type: object, additionalProperties: {type: string}}
          template: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
          spec:
            type: object
            properties:
              port: {type: string}
              masts: {type: integer, default: 3}
              hull: {type: object, default: {}, properties: {wood: {type: string, default: "<oak> & \"more\""}}}
          status: {type: object, properties: {afloat: {type: boolean}}}
          zone: {type: string, nullable: true}
  - name: v2
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

var floatsOf = schema.GroupResource{Group: "sea.example.com", Resource: "floats"}

const floatsPath = "/apis/sea.example.com/v1/namespaces/default/floats"

// floatClient writes floats and keeps the events of its writes, as they are to be sent.
type floatClient struct {
	*rawClient
	*rand.Rand
	written []floatEvent
}

// floatEvent is a change as a watch without selectors gets it.
type floatEvent struct {
	kind, name, was, is string // the last two are values of the label by which it is selected
	object              string // as the writer was answered
}

// send returns the answer, which is an object.
func (c *floatClient) send(t testing.TB, method, path, mediaType, body string) string {
	t.Helper()
	r := must(http.NewRequestWithContext(t.Context(), method, c.host+path, strings.NewReader(body)))(t)
	r.Header.Set("Content-Type", mediaType)
	r.Header.Set("Accept", runtime.ContentTypeJSON)
	answer := must(c.Do(r))(t)
	defer func() { _ = answer.Body.Close() }()
	text := must(io.ReadAll(answer.Body))(t)
	if answer.StatusCode > 299 {
		t.Fatalf("%s %s: %s %s\n%s", method, path, answer.Status, text, body)
	}
	return strings.TrimSuffix(string(text), "\n")
}

// text returns a random text with much that JSON has to escape.
func (c *floatClient) text() string {
	parts := []string{"a", "ü", "\"", "\\", "\\\"", "<", "&", "\u2028", "\n", "{", "}", "[", "]", ",", ":", " ", "\t",
		"resourceVersion", "metadata", "\x01", "€"}
	var b strings.Builder
	for range c.Intn(8) {
		b.WriteString(parts[c.Intn(len(parts))])
	}
	return b.String()
}

func (c *floatClient) value(depth int) any {
	switch n := c.Intn(9); {
	case n == 0:
		return c.Int63()
	case n == 1:
		return []float64{0.5, 1e30, -2.25e-9, 3, 1e21}[c.Intn(5)]
	case n == 2:
		return c.Intn(2) == 0
	case n == 3:
		return nil
	case n < 6 || depth == 0:
		return c.text()
	case n == 6:
		list := make([]any, c.Intn(3))
		for i := range list {
			list[i] = c.value(depth - 1)
		}
		return list
	}
	members := map[string]any{}
	for range c.Intn(4) {
		members[c.text()] = c.value(depth - 1)
	}
	return members
}

// random makes a float as a client may send it.
func (c *floatClient) random(name, label string) map[string]any {
	annotations := map[string]any{}
	for range c.Intn(3) {
		annotations[fmt.Sprintf("note-%d", c.Intn(5))] = c.text()
	}
	o := map[string]any{
		"apiVersion": "sea.example.com/v1", "kind": "Float",
		"metadata": map[string]any{"name": name, "annotations": annotations,
			"labels": map[string]any{"selected": label, "resourceVersion": "no"}},
		"spec": map[string]any{"port": []string{"Kiel", "Bremen"}[c.Intn(2)], "unknown": c.value(2)},
	}
	for key, value := range map[string]any{
		"any": c.value(3), "data": map[string]any{"metadata": c.text(), "resourceVersion": "7"}, "zone": c.text(),
		"unknown": c.value(1),
		"template": map[string]any{"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"name": "x", "resourceVersion": "8"}, "spec": c.value(2)},
	} {
		if c.Intn(2) == 0 {
			o[key] = value
		}
	}
	if c.Intn(4) == 0 {
		delete(o, "spec") // which has defaults, but is none itself
	}
	return o
}

func encoded(t testing.TB, v any) string {
	t.Helper()
	return string(must(json.Marshal(v))(t))
}

// write creates, changes and deletes floats.
func (c *floatClient) write(t testing.TB) {
	t.Helper()
	c.written = nil
	labels := map[string]string{}
	note := func(kind, name, label, answer string) {
		c.written = append(c.written, floatEvent{kind, name, labels[name], label, answer})
		labels[name] = label
	}
	for step := range 4 {
		for i := range 5 {
			name, label := fmt.Sprintf("float%d", i), []string{"yes", "no"}[c.Intn(2)]
			path, object := floatsPath+"/"+name, c.random(name, label)
			switch {
			case step == 0:
				note("ADDED", name, label,
					c.send(t, http.MethodPost, floatsPath, runtime.ContentTypeJSON, encoded(t, object)))
			case step == 1:
				var is map[string]any
				must(0, json.Unmarshal([]byte(c.send(t, http.MethodGet, path, "", "")), &is))(t)
				object["metadata"].(map[string]any)["resourceVersion"] = is["metadata"].(map[string]any)["resourceVersion"]
				note("MODIFIED", name, label,
					c.send(t, http.MethodPut, path, runtime.ContentTypeJSON, encoded(t, object)))
			case step == 2:
				patch := map[string]any{
					"metadata": map[string]any{"labels": map[string]any{"selected": label},
						"annotations": map[string]any{"step": c.text() + fmt.Sprint(c.Int())}}}
				note("MODIFIED", name, label,
					c.send(t, http.MethodPatch, path, string(types.MergePatchType), encoded(t, patch)))
			case i%2 == 0:
				r := c.get(t, path, http.Header{"Accept": {runtime.ContentTypeJSON}})
				c.send(t, http.MethodDelete, path, "", "")
				note("DELETED", name, labels[name], strings.TrimSuffix(r.body, "\n"))
			}
		}
	}
}

// clear deletes the floats that are left.
func (c *floatClient) clear(t testing.TB) {
	t.Helper()
	c.send(t, http.MethodDelete, floatsPath, "", "")
}

// frames are the events for a watch, which selects by a label if there is one. Those of deletions
// lack the revision, because the writer does not get it.
func (c *floatClient) frames(label string) (frames []string) {
	for _, e := range c.written {
		kind, object := e.kind, e.object
		switch was, is := e.was == label, e.is == label; {
		case label == "" || e.kind == "DELETED" && is || was && is:
		case is:
			kind = "ADDED"
		case was && e.kind == "MODIFIED":
			kind, object = "DELETED", "" // as it was
		default:
			continue
		}
		frames = append(frames, `{"type":"`+kind+`","object":`+object+"}\n")
	}
	return frames
}

// watched returns as many frames of a watch as are wanted.
func (c *floatClient) watched(t testing.TB, path, query string, frames int) (got []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	defer cancel()
	r := must(http.NewRequestWithContext(ctx, http.MethodGet, c.host+path+"?watch=true&"+query, nil))(t)
	r.Header.Set("Accept", runtime.ContentTypeJSON)
	answer := must(c.Do(r))(t)
	defer func() { _ = answer.Body.Close() }()
	lines := bufio.NewReader(answer.Body)
	for len(got) < frames {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("after %d of %d frames: %v\n%q", len(got), frames, err, line)
		}
		got = append(got, line)
	}
	return got
}

// withoutVersion takes the resourceVersion out of a frame, and returns both.
func withoutVersion(t testing.TB, frame string) (rest string, version any) {
	t.Helper()
	var event struct {
		Type   string
		Object map[string]any
	}
	decoder := json.NewDecoder(strings.NewReader(frame))
	decoder.UseNumber()
	must(0, decoder.Decode(&event))(t)
	metadata := event.Object["metadata"].(map[string]any)
	version = metadata["resourceVersion"]
	delete(metadata, "resourceVersion")
	return event.Type + encoded(t, event.Object), version
}

// check compares lists and watches of random floats with the answers to their writes.
func (c *floatClient) check(t testing.TB) {
	t.Helper()
	first := c.get(t, floatsPath+"?limit=1", http.Header{"Accept": {runtime.ContentTypeJSON}})
	var list metav1.List
	must(0, json.Unmarshal([]byte(first.body), &list))(t)
	from := "resourceVersion=" + list.ResourceVersion
	c.write(t)
	defer c.clear(t)
	before := storedEventsOf(t, floatsOf)
	for _, of := range []struct{ query, label string }{{from, ""}, {from + "&labelSelector=selected%3Dyes", "yes"},
		{from + "&labelSelector=selected,selected+notin+(yes)", "no"}} {
		want := c.frames(of.label)
		got := c.watched(t, floatsPath, of.query, len(want))
		for i, frame := range want {
			if got[i] == frame {
				continue
			}
			kind, _, _ := strings.Cut(strings.TrimPrefix(got[i], `{"type":"`), `"`)
			if !strings.HasPrefix(frame, `{"type":"DELETED"`) || kind != "DELETED" {
				t.Fatalf("%s: got\n%s\nwant\n%s", of.query, got[i], frame)
			}
			if strings.HasSuffix(frame, `"object":}`+"\n") {
				continue
			}
			is, version := withoutVersion(t, got[i])
			if was, before := withoutVersion(t, frame); is != was || version == before {
				t.Fatalf("%s: got\n%s\nwant\n%s", of.query, got[i], frame)
			}
		}
	}
	if sent := storedEventsOf(t, floatsOf) - before; sent == 0 {
		t.Error("no event was made of stored bytes")
	}
	for query, stored := range map[string]bool{
		"": true, "limit=1": true, "labelSelector=selected%3Dyes": false, "labelSelector=resourceVersion": false,
		"fieldSelector=metadata.name!%3Dfloat1": false,
		"fieldSelector=spec.port%3DKiel":        false, "resourceVersion=0": true, "labelSelector=none": false,
		"fieldSelector=metadata.name%3Dfloat1": false,
	} {
		for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeYAML,
			"application/json;as=Table;g=meta.k8s.io;v=v1", "*/*",
			"*/*, application/yaml", ", application/yaml", "\tapplication/json, application/yaml",
			"application/vnd.kubernetes.protobuf,application/json"} {
			answer, raw := c.compare(t, floatsOf, floatsPath, query, http.Header{"Accept": {mediaType}})
			if want := stored && !strings.Contains(mediaType, ";") && !strings.Contains(mediaType, "yaml") &&
				!strings.Contains(mediaType, "protobuf"); raw != want {
				t.Errorf("%s, %q: made of stored bytes: %v, want %v", query, mediaType, raw, want)
			}
			if !strings.HasPrefix(answer.status, "200") {
				t.Errorf("%s, %q: %s %s", query, mediaType, answer.status, answer.body)
			}
		}
	}
	if _, raw := c.compare(t, floatsOf, strings.Replace(floatsPath, "v1", "v2", 1), "",
		http.Header{"Accept": {runtime.ContentTypeJSON}}); raw {
		t.Error("a list in another version than the stored one is made of stored bytes")
	}
}

// checkLarge compares a list that is large enough to be compressed.
func (c *floatClient) checkLarge(t testing.TB) {
	t.Helper()
	defer c.clear(t)
	for i := range 3 {
		object := c.random(fmt.Sprintf("large%d", i), "yes")
		object["data"] = map[string]any{"a": strings.Repeat("large <&> ", 20_000)}
		c.send(t, http.MethodPost, floatsPath, runtime.ContentTypeJSON, encoded(t, object))
	}
	for _, encoding := range []string{"", "gzip", "gzip, deflate", "identity"} {
		answer, raw := c.compare(t, floatsOf, floatsPath, "",
			http.Header{"Accept": {runtime.ContentTypeJSON}, "Accept-Encoding": {encoding}})
		if !raw || answer.header.Get("Content-Encoding") == "" == strings.HasPrefix(encoding, "gzip") {
			t.Errorf("%q: made of stored bytes: %v, %q", encoding, raw, answer.header)
		}
	}
}

func newFloatClient(t testing.TB, c *cluster, seed int64) *floatClient {
	return &floatClient{rawClient: &rawClient{c.plainClient(t), c.host}, Rand: rand.New(rand.NewSource(seed))}
}

// TestStoredDocuments compares lists and watches of custom resources, which are sent as they are
// stored, with the answers to their writes, byte for byte.
func TestStoredDocuments(t *testing.T) {
	c, seed := startCluster(t), rand.Int63()
	must(0, c.ensure(t.Context(), c.client))(t)
	c.define(t, floats)
	t.Logf("seed %d", seed)
	client := newFloatClient(t, c, seed)
	client.check(t)
	client.checkLarge(t)
}

// FuzzStoredDocuments is TestStoredDocuments for any seed.
func FuzzStoredDocuments(f *testing.F) {
	c := startCluster(f)
	must(0, c.ensure(context.Background(), c.client))(f)
	if _, err := c.extensions(f).ApiextensionsV1().CustomResourceDefinitions().Create(context.Background(),
		definition(f, floats), metav1.CreateOptions{}); err != nil {
		f.Fatal(err)
	}
	f.Add(int64(1))
	f.Fuzz(func(t *testing.T, seed int64) {
		c.awaitDefinition(t, "floats.sea.example.com", apiextensionsv1.Established)
		newFloatClient(t, c, seed).check(t)
	})
}

// storedFloat returns the stored bytes.
func storedFloat(t testing.TB, store *raftstore.Store, name string) []byte {
	t.Helper()
	item, ok := must(store.View(t.Context(), raftstore.ViewOptions{}))(t).Get(
		"/registry/sea.example.com/floats/default/" + name)
	if !ok {
		t.Fatalf("%s is not stored", name)
	}
	return item.Value
}

// TestDefinitionsChange: objects that were stored under one definition are decoded under the next
// one, and servers with the same definition trust each other's marks.
func TestDefinitionsChange(t *testing.T) {
	store := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { _ = store.Close() })
	same := func(cfg *Config) { cfg.Store = store }
	c, other := startCluster(t, same), startCluster(t, same)
	must(0, c.ensure(t.Context(), c.client))(t)
	crd := c.define(t, floats)
	client, otherClient := newFloatClient(t, c, 1), newFloatClient(t, other, 1)
	create := func(c *floatClient, name string) []byte {
		c.send(t, http.MethodPost, floatsPath, runtime.ContentTypeJSON,
			fmt.Sprintf(
				`{"apiVersion":"sea.example.com/v1","kind":"Float","metadata":{"name":%q},"spec":{"port":"Kiel"}}`,
				name))
		return storedFloat(t, store, name)
	}
	mark := func(value []byte) []byte { return value[len(rawlist.Unmarked(value)):] }
	of := mark(create(client, "a"))
	if len(of) == 0 || !bytes.Equal(mark(create(otherClient, "b")), of) {
		t.Fatalf("marks of two servers: %q, %q", of, mark(storedFloat(t, store, "b")))
	}
	// As another program has stored it, which knows no marks, and does not know the default.
	replaced := strings.NewReplacer(`"masts":3,`, `"mast":3,`, `"managedFields":`,
		`"labels":{"number":5,"selected":"yes"},"managedFields":`)
	unmarked := []byte(replaced.Replace(string(rawlist.Unmarked(storedFloat(t, store, "b")))))
	must(
		store.Commit(t.Context(),
			raftstore.Txn{
				Ops: []raftstore.Op{
					{Kind: raftstore.Put, Key: "/registry/sea.example.com/floats/default/b", Value: unmarked}}}))(t)
	check := func(what string, events float64, wants ...string) {
		t.Helper()
		before := storedEventsOf(t, floatsOf)
		got := client.watched(t, floatsPath, "resourceVersion=0", 2)
		if sent := storedEventsOf(t, floatsOf) - before; sent != events {
			t.Errorf("%s: %v events were made of stored bytes, want %v", what, sent, events)
		}
		list := client.get(t, floatsPath, http.Header{"Accept": {runtime.ContentTypeJSON}}).body
		for i, name := range []string{"a", "b"} {
			single := strings.TrimSuffix(
				client.get(t, floatsPath+"/"+name, http.Header{"Accept": {runtime.ContentTypeJSON}}).body, "\n")
			if got[i] != `{"type":"ADDED","object":`+single+"}\n" || !strings.Contains(list, single) {
				t.Errorf("%s: got\n%s in the list\n%s\nwant\n%s", what, got[i], list, single)
			}
			for _, want := range wants {
				if !strings.Contains(single, want) {
					t.Errorf("%s: %s lacks %s", what, single, want)
				}
			}
		}
	}
	check("as it was", 1, `"masts":3`)
	if _, raw := client.compare(t, floatsOf, floatsPath, "labelSelector=selected%3Dyes",
		http.Header{"Accept": {runtime.ContentTypeJSON}}); raw {
		t.Error("a list with a selector is made of stored bytes")
	}
	selected := client.get(t, floatsPath+"?labelSelector=selected%3Dyes",
		http.Header{"Accept": {runtime.ContentTypeJSON}})
	if !strings.Contains(selected.body, `"items":[]`) {
		t.Errorf("labels that decoding drops select %s", selected.body)
	}

	// A field gets another default: an object with the field keeps its value, and one that lacks it
	// gets the new one.
	patch := `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/flag","value":{"type":"string","default":"blue"}}]`
	client.send(t, http.MethodPatch, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+crd.Name,
		string(types.JSONPatchType), patch)
	await(t, "the definition is served", func(context.Context) (error, bool) {
		body := client.get(t, floatsPath+"/a", http.Header{"Accept": {runtime.ContentTypeJSON}}).body
		return fmt.Errorf("%s", body), strings.Contains(body, `"flag":"blue"`)
	})
	check("after the definition has changed", 0, `"masts":3`, `"flag":"blue"`)
	after := mark(create(client, "c"))
	if len(after) == 0 || bytes.Equal(after, of) {
		t.Errorf("the mark was %q and is %q", of, after)
	}

	// The value of a default changes, which is the only difference of both definitions.
	patch = `[{"op":"replace","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/masts/default","value":4}]`
	client.send(t, http.MethodPatch, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+crd.Name,
		string(types.JSONPatchType), patch)
	await(t, "the definition is served", func(context.Context) (error, bool) {
		body := client.get(t, floatsPath+"/b", http.Header{"Accept": {runtime.ContentTypeJSON}}).body
		return fmt.Errorf("%s", body), strings.Contains(body, `"masts":4`)
	})
	check("after a default has changed", 0, `"flag":"blue"`)
	if last := mark(create(client, "d")); len(last) == 0 || bytes.Equal(last, after) {
		t.Errorf("the mark was %q and is %q", after, last)
	}
}

// BenchmarkDocumentsOverHTTP lists and watches 2,000 custom resources of a kilobyte, once as they
// are stored, and once decoded, as objects of another program are. An operation is all of them.
func BenchmarkDocumentsOverHTTP(b *testing.B) {
	const objects = 2000
	store := raftstore.NewInMemory(raftstore.Options{})
	b.Cleanup(func() { _ = store.Close() })
	c := startCluster(b, func(cfg *Config) { cfg.Store = store })
	must(0, c.ensure(b.Context(), c.client))(b)
	c.define(b, floats)
	client := newFloatClient(b, c, 1)
	for i := range objects {
		object := client.random(fmt.Sprintf("float%d", i), "yes")
		object["data"] = map[string]any{"a": strings.Repeat("x", 500)}
		client.send(b, http.MethodPost, floatsPath, runtime.ContentTypeJSON, encoded(b, object))
	}
	for _, name := range []string{"stored", "decoded"} {
		mark := name == "stored"
		if !mark {
			view := must(store.View(b.Context(), raftstore.ViewOptions{}))(b)
			var ops []raftstore.Op
			view.Ascend("/registry/sea.example.com/floats/", "", func(item raftstore.Item) bool {
				ops = append(ops, raftstore.Op{Kind: raftstore.Put, Key: item.Key, Value: rawlist.Unmarked(item.Value)})
				return true
			})
			for some := range slices.Chunk(ops, 500) {
				must(store.Commit(b.Context(), raftstore.Txn{Ops: some}))(b)
			}
		}
		b.Run("watch/"+name, func(b *testing.B) {
			for b.Loop() {
				client.watched(b, floatsPath, "resourceVersion=0", objects)
			}
		})
		b.Run("list/"+name, func(b *testing.B) {
			for b.Loop() {
				query := "?pretty=false"
				if mark {
					query = ""
				}
				client.get(b, floatsPath+query, http.Header{"Accept": {runtime.ContentTypeJSON}})
			}
		})
	}
}
