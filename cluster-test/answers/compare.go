package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// server is an API server that is asked.
type server struct {
	name   string
	url    string
	client *http.Client
	stop   func()
}

// answer is a server's answer, without the values that differ from one time to the next.
type answer struct {
	code     int
	reason   string
	message  string
	causes   []string // type and field
	texts    []string // type, field and text
	warnings []string
	object   any // nil if the request was refused
}

func (s *server) ask(ctx context.Context, q request) (*answer, error) {
	var body []byte
	if q.body != nil {
		var err error
		if body, err = json.Marshal(q.body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, q.method, s.url+q.path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", cmp.Or(q.accept, "application/json"))
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	a := &answer{code: res.StatusCode}
	warnings, _ := utilnet.ParseWarningHeaders(res.Header["Warning"])
	for _, w := range warnings {
		a.warnings = append(a.warnings, w.Text)
	}
	a.warnings = set(a.warnings)
	if a.code < 300 {
		err = json.Unmarshal(said, &a.object)
		a.object = steady(a.object, nil)
		return a, err
	}
	var status metav1.Status
	if err := json.Unmarshal(said, &status); err != nil {
		return nil, fmt.Errorf("%s: %s", res.Status, said)
	}
	a.reason, a.message = string(status.Reason), status.Message
	if status.Details != nil {
		for _, c := range status.Details.Causes {
			a.causes = append(a.causes, string(c.Type)+" "+c.Field)
			a.texts = append(a.texts, string(c.Type)+" "+c.Field+": "+c.Message)
		}
	}
	a.causes, a.texts = set(a.causes), set(a.texts)
	return a, nil
}

func set(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

// The names that a server makes up.
var (
	tokenVolume = regexp.MustCompile(`kube-api-access-[a-z0-9]{5}`)
	uuid        = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	// The age, the address of a Service, its node ports.
	madeUpCell = regexp.MustCompile(`^[0-9]+s$|^10\.(43|99)\.[0-9.]+$|:3[0-9]{4}\b`)
	madeUp     = []string{"uid", "resourceVersion", "creationTimestamp", "managedFields"}
)

// steady drops from an object the values that differ from one time to the next: values that a
// server makes up, addresses and ports that it has chosen, times at which it has found something,
// and the words that describe a column.
func steady(value any, path []string) any {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			at := strings.TrimPrefix(strings.Join(append(path, key), "."), "rows.*.object.")
			switch {
			case slices.Contains(madeUp, key) && at == "metadata."+key:
				delete(v, key)
			case at == "status.token", at == "status.expirationTimestamp", at == "columnDefinitions.*.description":
				delete(v, key)
			case v["signerName"] != nil && (at == "spec.uid" || at == "spec.extra"): // facts of the credential
				delete(v, key)
			case at == "details.uid":
				delete(v, key)
			case key == "lastTransitionTime", key == "lastPhaseTransitionTime":
				v[key] = child != nil
			case at == "metadata.name" && uuid.MatchString(fmt.Sprint(child)): // of an object without one
				v[key] = "*"
			case at == "spec.clusterIP" && child != "None", key == "nodePort", key == "healthCheckNodePort":
				delete(v, key)
			case at == "spec.clusterIPs" && !reflect.DeepEqual(child, []any{"None"}):
				delete(v, key)
			default:
				v[key] = steady(child, append(path, key))
			}
		}
	case []any:
		for i := range v {
			v[i] = steady(v[i], append(path, "*"))
		}
	case string:
		if strings.Join(path, ".") == "rows.*.cells.*" {
			return madeUpCell.ReplaceAllString(v, "*")
		}
		if uuid.MatchString(v) { // a Job's, in its selector and its template
			return "*"
		}
		return tokenVolume.ReplaceAllString(v, "kube-api-access-*")
	}
	return value
}

// differences are the paths at which two objects differ, with both values.
func differences(path string, want, got any) []string {
	wantMap, ok := want.(map[string]any)
	gotMap, both := got.(map[string]any)
	if ok && both {
		var out []string
		keys := map[string]bool{}
		for key := range wantMap {
			keys[key] = true
		}
		for key := range gotMap {
			keys[key] = true
		}
		for key := range keys {
			out = append(out, differences(path+"."+key, wantMap[key], gotMap[key])...)
		}
		slices.Sort(out)
		return out
	}
	wantList, ok := want.([]any)
	gotList, both := got.([]any)
	if ok && both && len(wantList) == len(gotList) {
		var out []string
		for i := range wantList {
			out = append(out, differences(fmt.Sprintf("%s[%d]", path, i), wantList[i], gotList[i])...)
		}
		return out
	}
	if reflect.DeepEqual(want, got) {
		return nil
	}
	return []string{fmt.Sprintf("%s: upstream %v, Barque %v", strings.TrimPrefix(path, "."), short(want), short(got))}
}

func short(v any) string {
	const most = 120
	data, _ := json.Marshal(v)
	return string(data[:min(len(data), most)])
}
