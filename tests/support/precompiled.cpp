// Has no code: the target of the precompiled headers needs a source.
int main() {}
