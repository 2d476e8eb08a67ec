// Logits of one text by llama.cpp: MODEL THREADS OUT TOKEN… writes float32 [tokens, vocabulary] to OUT.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  std::vector<llama_token> tokens;
  for (int i = 4; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));
  const int n = int(tokens.size());
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return 1;
  llama_context_params how = llama_context_default_params();
  how.n_ctx = how.n_batch = how.n_ubatch = uint32_t(n);
  how.n_threads = how.n_threads_batch = std::atoi(argv[2]);
  llama_context* context = llama_init_from_model(model, how);
  if (context == nullptr) return 1;
  llama_batch batch = llama_batch_init(n, 0, 1);
  for (int i = 0; i < n; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = true;
  }
  batch.n_tokens = n;
  if (llama_decode(context, batch) != 0) return 1;
  const size_t vocab = size_t(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  std::FILE* out = std::fopen(argv[3], "wb");
  if (out == nullptr) return 1;
  for (int i = 0; i < n; ++i) std::fwrite(llama_get_logits_ith(context, i), sizeof(float), vocab, out);
  return std::fclose(out);
}
