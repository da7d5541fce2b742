package credentials

import (
	"encoding/json"
	"fmt"
	"time"
)

// Agents report their certificates in gossip messages: the servers issue them and keep no copy.

// About returns the agent's report for other members.
func (ids *Agent) About() json.RawMessage {
	now := time.Now()
	own := []CertificateInfo{InfoOf("api-client", ids.Client.Certificate().Leaf, true, now),
		InfoOf("kubelet", ids.Serving.Certificate().Leaf, true, now)}
	own[0].File, own[1].File = ids.file(clientFile), ids.file(servingFile)
	data, err := json.Marshal(own)
	if err != nil {
		ids.logger.Error("this agent cannot report its certificates", "err", err)
		return nil
	}
	return data
}

// ToldCertificates reads an agent's report. The remaining time is by this server's clock.
func ToldCertificates(told json.RawMessage, now time.Time) ([]CertificateInfo, error) {
	var certificates []CertificateInfo
	if err := json.Unmarshal(told, &certificates); err != nil {
		return nil, fmt.Errorf("what it says is not understood: %w", err)
	}
	for i := range certificates {
		certificates[i].SecondsLeft, certificates[i].Warning = int64(certificates[i].NotAfter.Sub(now).Seconds()), ""
	}
	return certificates, nil
}
