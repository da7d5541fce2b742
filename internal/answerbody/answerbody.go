// Package answerbody reads the server's reason in the body of a refused request. client-go returns
// the body of a raw request apart from its error, which has the status code alone then.
package answerbody

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reason returns the Status in the body, or else its plain text. Both are empty for a body that is
// no sentence for people, such as other JSON or a page.
func Reason(body []byte) (status *metav1.Status, text string) {
	var is metav1.Status
	if json.Unmarshal(body, &is) == nil && is.Message != "" {
		return &is, ""
	}
	text = strings.TrimSpace(string(body))
	if strings.HasPrefix(text, "{") || strings.HasPrefix(text, "<") {
		return nil, ""
	}
	return nil, text
}
